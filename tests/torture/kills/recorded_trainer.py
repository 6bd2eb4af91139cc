"""The trainer as a process that records what it trains on: ``RECORD grpo-flags...``.

One JSON line per optimizer step, on disk before the step is published: batch number, keys, and
hashes of the batch and of the weights before and after.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from example_trainer import grpo


def digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def weights(policy: Any) -> str:
    return digest(p.detach().numpy().tobytes() for p in policy.parameters())


def record_to(path: str) -> None:
    next_batch, learn = grpo.next_batch, grpo.learn
    held: list[Any] = []

    def claim(*args: Any) -> Any:
        held[:] = [next_batch(*args)]
        return held[0]

    def train(cfg: Any, policy: Any, optimizer: Any, prepared: Any, state: Any, **more: Any):
        before = weights(policy)
        learned = learn(cfg, policy, optimizer, prepared, state, **more)
        groups = held[0].batch
        line = {
            **{
                "step": state.step + 1,
                "batch_no": held[0].batch_no,
                "life": state.incarnation,
            },
            **{"keys": [group.idempotency_key for group in groups]},
            **{"batch": digest(map(msgspec.json.encode, groups))},
            **{"before": before, "after": weights(policy)},
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return learned

    vars(grpo).update(next_batch=claim, learn=train)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_to(sys.argv[1])
    raise SystemExit(grpo.main(sys.argv[2:]))
