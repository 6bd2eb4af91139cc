"""Notes of one batch by two ranks, against those of one rank; a part of two_ranks.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from atroposlib.wire.notes import GroupNotes
from example_trainer.advantage.prepare import prepare_batch
from example_trainer.data.rows import to_rows
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.reports import TokenValues, notes_of
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import StopSignal
from example_trainer.update.optimizer import build_optimizer
from example_trainer.update.step import learn
from tests.trainer.rows import scored

LENGTHS_G_R = ((1, 7, 3, 5), (4, 2, 6, 8), (2, 2, 2, 2))
GROUPS = [
    scored([[5, 6, 7, *range(8 + g, 8 + g + n)] for n in lengths], 3, [n % 3 for n in lengths])
    for g, lengths in enumerate(LENGTHS_G_R)
]
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"minibatches": 2, "ppo_epochs": 2, "optimizer": "sgd", "lr": 1.0},
    "m2po": {"loss": "m2po"},
}


def noted(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """By loss: rows with notes, flags seen, and distances from the notes of one rank."""
    found = {}
    for name, more in CASES.items():
        own = cfg.model_copy(update=more)
        ours, alone = (_notes(own, ranks) for ranks in (world, None))
        pairs = list(zip(ours, alone, strict=True))
        found[name] = {
            "members": [one.member for one in ours],
            "counts": [one.counts.tolist() for one in ours],
            "flags": sorted({flag for one in ours for flag in one.flags.tolist()}),
            "same flags": all((a.flags == b.flags).all() for a, b in pairs),
            "same reasons": all(a.reasons == b.reasons for a, b in pairs),
            "distance": max(_distance(a, b) for a, b in pairs),
        }
    return found


def _notes(cfg: TrainingConfig, world: Ranks | None) -> list[GroupNotes]:
    batch = to_rows(GROUPS, 64)
    prepared = prepare_batch(batch.rows, cfg, 0)
    policy = loading.load_policy(cfg, world)
    values, state = TokenValues(), TrainerState("run", 0, 0, None)
    learn(
        *(cfg, policy, build_optimizer(policy, cfg), prepared, state, StopSignal()),
        values=values,
    )
    return list(notes_of(GROUPS, batch, prepared, values))


def _distance(ours: GroupNotes, theirs: GroupNotes) -> float:
    names = ("advantages", "logprobs", "diff_mean", "diff_max")
    pairs = [[getattr(one, name).astype(float) for one in (ours, theirs)] for name in names]
    assert all((np.isnan(a) == np.isnan(b)).all() for a, b in pairs)
    return max(float(np.nanmax(np.abs(a - b), initial=0.0)) for a, b in pairs)
