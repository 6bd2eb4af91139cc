"""Console command atropos-grpo, and the original's import path of its settings.

Torch is loaded after the command line is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from atroposlib.utils.command.parser import require
from example_trainer.settings.args import PROG, config_from_args, parse_args, require_models

__all__ = ["config_from_args", "main", "parse_args"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run atropos-grpo; return the exit status."""
    cfg = parse_args(argv)
    require(PROG, "train", "torch", "transformers")
    require_models(cfg.model_name, cfg.reference_model, cfg.critic_model)
    from example_trainer import grpo

    return grpo.run(partial(grpo.train, cfg))
