"""Console commands atropos-sft, atropos-dpo and atropos-rm: torch is loaded after parsing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from atroposlib.utils.command.parser import require
from example_trainer.supervised.settings import (
    DpoConfig,
    FileTraining,
    RewardConfig,
    SftConfig,
    parse,
)

C = TypeVar("C", bound=FileTraining)


def sft(argv: Sequence[str] | None = None) -> int:
    """Run atropos-sft; return the exit status."""
    cfg = _parsed(SftConfig, argv)
    from example_trainer.supervised import loop, sft

    return loop.run(sft.train, cfg)


def dpo(argv: Sequence[str] | None = None) -> int:
    """Run atropos-dpo; return the exit status."""
    cfg = _parsed(DpoConfig, argv)
    from example_trainer.supervised import dpo, loop

    return loop.run(dpo.train, cfg)


def reward_model(argv: Sequence[str] | None = None) -> int:
    """Run atropos-rm; return the exit status."""
    cfg = _parsed(RewardConfig, argv)
    from example_trainer.supervised import loop, reward_model

    return loop.run(reward_model.train, cfg)


def _parsed(model: type[C], argv: Sequence[str] | None) -> C:
    cfg = parse(model, argv)
    require(cfg.prog, "train", "torch", "transformers")
    return cfg
