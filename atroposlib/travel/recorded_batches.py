"""Batches of a run as its trainer got them: their groups, in order, and changed copies.

    index (batch -> groups) --payloads--> Columns --new rewards, versions--> ScoredData

Groups of a batch are delivered in the order of their ids. Batches that were set aside as dead, and
groups that were dropped, are no part of a batch here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.archive.row_texts import stored_payloads
from atroposlib.api.store.sqlite.segment_payloads import OpenPayloads
from atroposlib.errors import ConfigError
from atroposlib.wire import MASKED_VERSION, ScoredData
from atroposlib.wire.binary import unpack_columns
from atroposlib.wire.columns import to_group
from atroposlib.wire.group_arrays import Columns

TRAINED = ("acked", "committed")
Scores = Mapping[tuple[int, int], "float | None"]  # key: group and row; None: no new reward
_BATCHES = f"""
SELECT rollout.batch_no, COALESCE(batch.step, rollout.batch_no), gid, env, COUNT(*)
FROM rollout JOIN batch ON batch.no = rollout.batch_no
WHERE batch.state IN {TRAINED} GROUP BY gid ORDER BY rollout.batch_no, gid
"""


class RecordedGroup(NamedTuple):
    """A group of a batch."""

    gid: int
    env: str | None
    n_rows: int


@dataclass(frozen=True)
class RecordedBatch:
    """A batch that the trainer acked."""

    no: int
    step: int  # step of the trainer, else the number of the batch
    members: tuple[RecordedGroup, ...]

    @property
    def n_rows(self) -> int:
        return sum(member.n_rows for member in self.members)


@dataclass(frozen=True)
class Changes:
    """Changes to recorded groups.

    Args:
        scores: new rewards; None: the recorded ones.
        keep_old: rows without a new reward keep their recorded one.
        version_shift: taken off the policy version of each token; not below 0.
    """

    scores: Scores | None = None
    keep_old: bool = False
    version_shift: int = 0


class RecordedRun:
    """The trained batches of a data directory; a context.

    Raises ConfigError: there is no index, or no trained batch from ``first_step`` on.
    """

    def __init__(self, folder: Path, run_id: str | None = None, first_step: int = 0) -> None:
        rollouts = RunRollouts(folder, run_id, {}, text=True)
        self._index = rollouts.index
        batches: dict[int, RecordedBatch] = {}
        for no, step, gid, env, n_rows in self._index.read(_BATCHES):
            batch = batches.get(no, RecordedBatch(no, step, ()))
            batches[no] = replace(
                batch, members=(*batch.members, RecordedGroup(gid, env, n_rows))
            )
        self.batches = [batch for batch in batches.values() if batch.step >= first_step]
        if not self.batches:
            last = max((batch.step for batch in batches.values()), default=0)
            raise ConfigError(
                f"no batch to replay from step {first_step} on: {last} was the last"
            )
        self._payloads = OpenPayloads(rollouts.database)

    def __enter__(self) -> RecordedRun:
        return self

    def __exit__(self, *raised: object) -> None:
        self._payloads.close()

    @property
    def envs(self) -> list[str]:
        """Names of the environments with groups in the batches."""
        names = (member.env for batch in self.batches for member in batch.members)
        return sorted({name for name in names if name is not None})

    def groups(self, batch: RecordedBatch, changes: Changes) -> list[ScoredData]:
        """The groups of a batch, in order.

        Raises ConfigError: a payload is freed, or a row has no new reward.
        """
        gids = [member.gid for member in batch.members]
        payloads = stored_payloads(self._index, self._payloads, gids)
        if missing := [gid for gid in gids if gid not in payloads]:
            raise ConfigError(
                f"{len(missing)} of {len(gids)} groups of step {batch.step} are not kept any more:"
                " replay from a later step with --from-step"
            )
        return [changed_group(unpack_columns(payloads[gid]), gid, changes) for gid in gids]


def changed_group(columns: Columns, gid: int, changes: Changes) -> ScoredData:
    """A recorded group for another run: without its key, environment and life of the trainer.

    Advantages that the environment sent are left out where rewards are replaced.

    Raises ConfigError: a row has no new reward.
    """
    scores, floats = columns.scores, dict(columns.floats)
    if changes.scores is not None:
        scores = new_scores(columns, gid, changes.scores, changes.keep_old)
        floats.pop("advantages", None)
    own = replace(
        columns,
        scores=scores,
        floats=floats,
        versions=shifted_versions(columns, changes.version_shift),
        env_id=None,
        idempotency_key=None,
        incarnation=None,
    )
    return to_group(own)


def new_scores(columns: Columns, gid: int, scores: Scores, keep_old: bool) -> np.ndarray:
    """The new rewards of the rows of a group, (G,)."""
    replaced = columns.scores.astype(np.float64)
    for row in range(len(replaced)):
        score = scores.get((gid, row))
        if score is not None:
            replaced[row] = score
        elif not keep_old:
            raise ConfigError(
                f"--scores has no new reward for group {gid} row {row}: rescore all rollouts, mend"
                " the reward, or let such rows keep their recorded reward with --keep-old"
            )
    return replaced


def shifted_versions(columns: Columns, shift: int) -> np.ndarray | None:
    """Policy versions per token of a run that begins at another version, (T,)."""
    versions = columns.versions
    if versions is None or not shift:
        return versions
    return np.where(versions == MASKED_VERSION, versions, np.maximum(versions - shift, 0))


def in_order(
    batches: Sequence[RecordedBatch], order: str, seed: int
) -> Iterator[RecordedBatch]:
    """Batches as ``recorded``, or ``shuffled`` with a seed; their composition stays."""
    if order == "shuffled":
        batches = random.Random(seed).sample(batches, len(batches))
    yield from batches
