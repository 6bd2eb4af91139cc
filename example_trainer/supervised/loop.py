"""Loop of training on files: steps over epochs, validation, saving, metrics.

    file -> examples --shuffled--> lines of a step -> objective (loss, gradient) -> step
                                        |                                             |
                                        '<----------------- until the epochs are over '

An objective is a training method: ``sft``, ``dpo``, ``reward_model``.
"""

from __future__ import annotations

import logging
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import torch

from atroposlib.errors import AtroposError
from atroposlib.utils.command import logs
from example_trainer.checkpoint.exports import ModelExporter
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import PackedModel
from example_trainer.run.display import LineDisplay
from example_trainer.run.metrics_log import Clock, MetricsLog
from example_trainer.state.device_memory import named_out_of_memory
from example_trainer.supervised.corpus import Corpus, Example
from example_trainer.supervised.settings import FileTraining
from example_trainer.update.optimizer import build_optimizer, clipped_step

SHOWN = ("loss", "accuracy", "margin", "grad_norm", "lr")
C = TypeVar("C", bound=FileTraining)
logger = logging.getLogger(__name__)


class Objective(Protocol):
    """A training loss over examples, as a mean over the tokens or the pairs of a step."""

    def learn(self, examples: Sequence[Example]) -> dict[str, float]:
        """Add the gradient of the mean loss to the parameters; return means, with ``loss``."""

    def measure(self, examples: Sequence[Example]) -> tuple[dict[str, float], float]:
        """Return sums without a gradient, and their divisors."""


def run_command(train: Callable[[C], None], cfg: C) -> int:
    """Run a command; return 0 when done, 1 with a one-line message on an error."""
    try:
        with named_out_of_memory():
            train(cfg)
    except AtroposError as error:
        logs.report(cfg.prog, f"{type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        logs.report(cfg.prog, "stopped; what was saved stays")
        return 130
    return 0


def fit(
    cfg: FileTraining,
    model: PackedModel,
    objective: Objective,
    train: Corpus,
    valid: Corpus | None,
) -> None:
    """Train for the configured number of epochs. Every rank calls it.

    Training metrics are of the model before the step, validation metrics of the model after
    it. Models are saved as by atropos-grpo: ``save_path/step_<n>`` at intervals, then
    ``final_model``.
    """
    world, examples = model.world, train.examples
    steps_of_epoch = math.ceil(len(examples) / cfg.lines_per_step)
    steps = min(cfg.epochs * steps_of_epoch, cfg.training_steps or sys.maxsize)
    shared = cfg.shared(steps)
    optimizer = build_optimizer(model, shared)
    exporter = ModelExporter(shared, world, adapter=shared.trains_adapter)
    valid_every = cfg.valid_every_steps or steps_of_epoch
    clock = Clock()
    if world.is_rank0:
        logger.info(f"{cfg.train_file}: {train}; {steps} steps")
    log = MetricsLog(shared, LineDisplay(metrics_line)) if world.is_rank0 else None
    with log or nullcontext():
        for step, lines in enumerate(lines_of_steps(cfg, len(examples), steps), 1):
            chosen = [examples[i] for i in lines]
            with clock.measure("train"):
                learned = objective.learn(chosen)
                norm, stepped = clipped_step(optimizer, model, shared, step - 1, steps)
            if valid is not None and (step % valid_every == 0 or step == steps):
                with clock.measure("valid"):
                    learned |= validation_means(objective, valid, cfg.lines_per_step)
            with clock.measure("save"):
                state = TrainerState("", step, step, None)
                exporter.maybe(model, state, epoch_ended=False)
                if step == steps:
                    exporter.final(model, state)
            record = {
                "step": step,
                "epoch": step / steps_of_epoch,
                **learned,
                "lr": optimizer.param_groups[0]["lr"],
                "grad_norm": norm,
                "updates_skipped": int(not stepped),
                "lines": len(chosen),
                "tokens": sum(len(row.tokens) for rows in chosen for row in rows),
                **clock.take(),
            }
            if log is not None:
                log.write(record)


def lines_of_steps(cfg: FileTraining, count: int, steps: int) -> Iterator[list[int]]:
    """Yield the lines of each step; every epoch has all lines once, in a separate order.

    The last step of an epoch has the remaining lines.
    """
    done = 0
    for epoch in range(cfg.epochs):
        order = list(range(count))
        if cfg.shuffle:
            random.Random(f"{cfg.seed}/{epoch}").shuffle(order)
        for start in range(0, count, cfg.lines_per_step):
            if done == steps:
                return
            done += 1
            yield order[start : start + cfg.lines_per_step]


@torch.no_grad()
def validation_means(objective: Objective, corpus: Corpus, at_once: int) -> dict[str, float]:
    """Compute means over the whole file, as ``valid/<name>``. Collective."""
    sums: dict[str, float] = {}
    total = 0.0
    for start in range(0, len(corpus.examples), at_once):
        batch_sums, count = objective.measure(corpus.examples[start : start + at_once])
        total += count
        for name, value in batch_sums.items():
            sums[name] = sums.get(name, 0.0) + value
    return {f"valid/{name}": value / max(1.0, total) for name, value in sums.items()}


def metrics_line(record: Mapping[str, Any]) -> str:
    """Format the learning metrics of a step."""
    names = [*SHOWN, *(name for name in record if name.startswith("valid/"))]
    shown = [f"{name} {record[name]:.4g}" for name in names if name in record]
    return f"step {record['step']}: {', '.join(shown)}"
