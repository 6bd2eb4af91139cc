"""Console commands atropos-sft, atropos-dpo and atropos-rm: torch is loaded after parsing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module

from atroposlib.utils.command.parser import require
from example_trainer.supervised.settings import (
    DpoConfig,
    FileTraining,
    RewardConfig,
    SftConfig,
    parse,
)


def main(model: type[FileTraining], name: str, argv: Sequence[str] | None = None) -> int:
    """Run ``train_<name>`` of the module ``name``; return the exit status."""
    cfg = parse(model, argv)
    require(cfg.prog, "train", "torch", "transformers")
    from example_trainer.supervised import loop

    module = import_module(f"example_trainer.supervised.{name}")
    return loop.run_command(getattr(module, f"train_{name}"), cfg)


sft = partial(main, SftConfig, "sft")
dpo = partial(main, DpoConfig, "dpo")
reward_model = partial(main, RewardConfig, "reward_model")
