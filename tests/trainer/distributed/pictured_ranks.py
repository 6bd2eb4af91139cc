"""Rows with pictures on two ranks against one; a part of two_ranks.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from atroposlib.testing.tiny_vision import write_tiny_vision_model
from example_trainer.data.rows import Row
from example_trainer.distributed import collectives
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from tests.trainer.rows import row
from tests.vision import drawing


def pictured(cfg: TrainingConfig, world: Ranks) -> dict[str, float]:
    """Largest distances of gradients and logprobs; three rows with pictures and one of text."""
    directory = Path(cfg.model_name).parent / "vision"
    if world.is_rank0:
        write_tiny_vision_model(directory, "qwen2_vl", hidden_size=32)
    world.sum_(torch.ones(1))  # written
    own = cfg.model_copy(update={"model_name": str(directory), "seq_len": 128})
    alone, policy = loading.load_policy(own), loading.load_policy(own, world)
    rows = [
        row([5, 6, 7], [8, 9]),
        *(_row(alone, colour) for colour in ("red", "blue", "green")),
    ]
    expected = {name: p.grad for name, p in _backward(alone, rows, Ranks.single()).items()}
    found = {
        name: collectives.full_tensor(p.grad)
        for name, p in _backward(policy, rows, world).items()
    }
    assert any(grad.abs().max() > 1e-3 for name, grad in expected.items() if "visual" in name)
    pairs = zip(alone.trained_logprobs(rows), policy.trained_logprobs(rows))
    return {
        "gradient": max(float((found[n] - grad).abs().max()) for n, grad in expected.items()),
        "logprob": max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours, theirs)),
    }


def _row(policy: Policy, colour: str) -> Row:
    reader = policy.pictures
    assert reader is not None
    text = reader.render([{"role": "user", "content": [{"type": "image"}]}])
    ids, _ = reader.prompt(text, [drawing(colour)])
    made = row(ids, [9, 10, 11], group=colour)
    return replace(made, pictures=reader.inputs(made.tokens, [drawing(colour)]))


def _backward(policy: Policy, rows: list[Row], world: Ranks) -> dict[str, Tensor]:
    for microbatch in policy.plan(rows, divisor=world.size)[world.rank :: world.size]:
        policy.score(microbatch).logprobs.sum().backward()
    return {n: p for n, p in policy.module.named_parameters() if p.requires_grad}
