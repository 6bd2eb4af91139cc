"""Console command atropos-grpo, and the original's import path of its settings.

Torch is loaded after the command line is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from example_trainer.settings.args import config_from_args, config_to_run, parse_args

__all__ = ["config_from_args", "main", "parse_args"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run atropos-grpo; return the exit status."""
    cfg = config_to_run(argv)
    from example_trainer import grpo

    return grpo.run_training(partial(grpo.train, cfg))
