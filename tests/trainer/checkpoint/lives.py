"""Successive processes of a trainer, reduced to recovery, and their files."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atroposlib.client import RolloutClient
from example_trainer import grpo
from example_trainer.checkpoint import snapshots
from example_trainer.checkpoint.recovery import Recovery
from example_trainer.checkpoint.shards import HostCopies, write_shards
from example_trainer.checkpoint.snapshots import Snapshot, Snapshots
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import Resumable
from example_trainer.update.optimizer import clipped_step, optimizer_state
from tests.trainer.rows import row, scored

BATCHES = 6


def recovery_of(
    cfg: TrainingConfig,
    world: Ranks | None = None,
    counters: Mapping[str, Resumable] | None = None,
) -> Recovery:
    return grpo.recovery_of(cfg, world or Ranks.single(), cfg.seq_len, counters)


@dataclass
class Life:
    """One process of a trainer, reduced to recovery."""

    client: RolloutClient
    policy: Policy
    optimizer: torch.optim.Optimizer
    recovery: Recovery
    state: TrainerState

    def step(self, *, save: bool = True) -> list[str]:
        """Train on the next batch; return its keys."""
        claimed = self.client.claim(wait_s=0)
        assert claimed.batch is not None, claimed.blocked_reason
        learn(self.policy, self.optimizer, self.state.step)
        step = self.state.step + 1
        self.state = TrainerState(self.state.run_id, step, step, claimed.batch_no)
        self.client.ack(claimed)
        if save:
            self.save()
            self.recovery.finish()
        return [group.idempotency_key or "" for group in claimed.batch]

    def save(self) -> None:
        self.recovery.save(self.client, self.policy, self.optimizer, self.state)


def write_snapshot(
    kept: Snapshots,
    step: int,
    tensors: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    documents: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Write a checkpoint as one rank does, without a thread."""
    shards = HostCopies().take(tensors or {}, Ranks.single())
    with kept.draft(step) as draft:
        written = write_shards(draft, 0, shards, lambda: None)
        snapshots.seal(draft, written, documents or {})
    return Snapshot(kept.directory / f"step_{step}")


def learn(policy: Policy, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A real gradient on tokens that random numbers chose."""
    tokens = torch.randint(5, 40, (5,)).tolist() + [random.randrange(5, 40)]
    for plan in policy.plan([row([5, 6], tokens)]):
        torch.autograd.backward(-policy.score(plan).logprobs.sum())
    clipped_step(optimizer, policy, TrainingConfig(model_name="", lr=1e-3), step, 10)


def groups(count: int) -> list[dict[str, Any]]:
    """Groups of the size of a batch, so that each makes one."""
    rows = [[5, 6, 7 + i] for i in range(8)]
    return [
        {
            **{"tokens": group.tokens, "masks": group.masks, "scores": group.scores},
            **{"inference_logprobs": group.inference_logprobs, "idempotency_key": f"key {n}"},
        }
        for n in range(count)
        for group in [scored(rows, 2, [float(i) for i in range(8)])]
    ]


def recover_directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "recover"


def checkpoints(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in recover_directory(tmp_path).glob("step_*"))


def everything(life: Life) -> dict[str, torch.Tensor]:
    held, numbers = optimizer_state(life.optimizer, life.policy)
    weights = {f"w{i}": p.detach() for i, p in enumerate(life.policy.parameters())}
    return {**held, **weights, "rng": torch.get_rng_state(), "lr": torch.tensor(numbers["lr"])}
