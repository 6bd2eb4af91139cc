"""Reports of the trainer to the rollout API: notes of each batch, numbers of each step. Rank 0.

    loop --batch(), step()--> queue --thread--> POST /batches/{no}/notes, POST /steps

The loop never waits for reports. A report is lost and counted where the API gives no answer
for ``GIVE_UP_S``, where it rejects the report, and where the queue is full.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, surviving
from atroposlib.trackers import finite_numbers
from atroposlib.wire import TRAINABLE_OUTCOMES, ClaimedBatch, ScoredData, StepReport
from atroposlib.wire.notes import CLIPPED, FILTERED, TOO_OLD, GroupNotes, pack_notes
from example_trainer.advantage.prepare import Prepared
from example_trainer.data.rows import TrainingBatch, at_trained
from example_trainer.distributed.ranks import Ranks

logger = logging.getLogger(__name__)
GIVE_UP_S = 5.0
MAX_WAITING = 4  # batches and steps
BODY_BYTES = 16 * 2**20  # limit of a post before compression
TIMEOUT_S = 30.0  # limit of a call
LOWEST = float(np.finfo(np.float16).min)


class Reporter:
    """A thread that sends reports of the trainer.

    Args:
        generation: of the trainer, asked when it has registered.
        rows: rows of a batch that are noted; None: all, 0: none.
    """

    def __init__(self, url: str, generation: Callable[[], int], rows: int | None) -> None:
        self._client = RolloutClient(
            url, timeout_s=TIMEOUT_S, give_up_after_s=GIVE_UP_S, on_wait=logger.debug
        )
        self._generation = generation
        self._rows = rows
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_WAITING + 1)
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Send what waits, within a bound."""
        self._queue.put(None)
        self._thread.join(2 * GIVE_UP_S)

    def batch(
        self,
        claimed: ClaimedBatch,
        batch: TrainingBatch,
        prepared: Prepared,
        values: TokenValues | None,
    ) -> None:
        """Note an acked batch; none of the arguments changes any more."""
        if values is not None:
            groups, rows = claimed.batch or [], self._rows
            self._put(
                lambda: self._send_notes(
                    claimed, notes_of(groups, batch, prepared, values, rows)
                )
            )

    def step(self, step: int, record: Mapping[str, Any]) -> None:
        """Report the numbers of a finished step."""
        more = {"step": step, "batch_no": record.get("batch_no")}
        report = StepReport.of(finite_numbers(record), role="trainer", **more)
        self._put(lambda: self._client.report_step(report))

    def evaluation(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of an evaluation to its step, which was reported before."""
        if numbers:
            report = StepReport.of(finite_numbers(numbers), role="trainer", step=step)
            self._put(lambda: self._client.report_step(report))

    def _put(self, job: Callable[[], None]) -> None:
        if self._queue.qsize() >= MAX_WAITING:
            self.lost += 1
        else:
            self._queue.put_nowait(job)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            with surviving(self._on_lost):
                self._client.adopt_generation(self._generation())
                job()
        self._client.close()

    def _on_lost(self, error: Exception) -> None:
        self.lost += 1
        expected = isinstance(error, AtroposError)
        level = logging.DEBUG if expected else logging.ERROR
        logger.log(level, f"a report is lost: {error}", exc_info=None if expected else error)

    def _send_notes(self, claimed: ClaimedBatch, notes: Iterator[GroupNotes]) -> None:
        files: list[bytes] = []
        for note in notes:
            files.append(pack_notes(note))
            if sum(map(len, files)) > BODY_BYTES:
                self._client.send_notes(claimed, files)
                files = []
        if files:
            self._client.send_notes(claimed, files)


@dataclass
class TokenValues:
    """Logprobs and clipped tokens of the rows of a batch, on the device until :meth:`table`.

    A logprob is that of the policy before the optimizer step that trains the row first.
    """

    parts: list[tuple[list[int], Tensor, Tensor | None]] = field(default_factory=list)
    kept_R: dict[int, list[bool]] = field(default_factory=dict)  # result of the batch mask
    whole: Tensor | None = None  # values of all ranks

    def add(self, rows: list[int], logprobs: Tensor, clipped: Sequence[Tensor]) -> None:
        """Add a pass over ``rows``, with (B, T) values; the first pass's logprobs count."""
        # Losses of several environments each have their own clip, and mask what is not theirs.
        ever = torch.stack(list(clipped)).any(0) if clipped else None
        self.parts.append((rows, logprobs.detach(), ever))

    def share(self, world: Ranks, lengths_R: Sequence[int]) -> None:
        """Take the values of all ranks together; a collective operation."""
        if world.size > 1:
            self.whole = world.sum_(self.table(lengths_R))

    def table(self, lengths_R: Sequence[int]) -> Tensor:
        """Logprob, and whether it was ever clipped, of all trained tokens: (2, N)."""
        if self.whole is not None:
            return self.whole
        ends = list(accumulate(lengths_R, initial=0))
        values, seen = torch.zeros(2, ends[-1]), set()
        for rows, logprobs, clipped in self.parts:
            logprobs = logprobs.float().cpu()
            clipped = None if clipped is None else clipped.float().cpu()
            for b, i in enumerate(rows):
                place, length = slice(ends[i], ends[i + 1]), lengths_R[i]
                if i not in seen:
                    values[0, place] = logprobs[b, :length]
                if clipped is not None:
                    values[1, place] = torch.maximum(values[1, place], clipped[b, :length])
                seen.add(i)
        return values


def notes_of(
    groups: Sequence[ScoredData],
    batch: TrainingBatch,
    prepared: Prepared,
    values: TokenValues,
    most: int | None = None,
) -> Iterator[GroupNotes]:
    """Notes about the first ``most`` rows of a batch, group by group."""
    delivered = {row.place: row for row in batch.rows}
    in_loss = {row.place: i for i, row in enumerate(prepared.rows)}
    lengths_R = [len(row.trained) for row in prepared.rows]
    ends = list(accumulate(lengths_R, initial=0))
    logprobs_N, clipped_N = values.table(lengths_R).numpy()
    left = sum(len(group.tokens) for group in groups) if most is None else most
    for member, group in enumerate(groups):
        G = min(left, len(group.tokens))
        left -= G
        rows = [delivered.get((member, g)) for g in range(G)]
        lengths = [len(row.trained) if row else 0 for row in rows]
        notes = GroupNotes.empty(member, lengths + [0] * (len(group.tokens) - G))
        for g, row in enumerate(rows):
            advantages, logprobs, flags = notes.of_row(g)
            if (i := in_loss.get((member, g))) is None or row is None:
                outcome = group.outcomes[g] if group.outcomes else "ok"
                dropped = "image" if outcome in TRAINABLE_OUTCOMES else outcome
                reason = prepared.left_out.get((member, g), dropped)
                notes.reasons[g] = reason
                flags[:] = TOO_OLD if reason == "stale" else FILTERED
                continue
            fresh, ours = prepared.rows[i], logprobs_N[ends[i] : ends[i + 1]]
            at = np.searchsorted(row.trained, fresh.trained)
            advantages[at] = prepared.advantages_R_T[i]
            logprobs[at] = np.maximum(ours, LOWEST)
            kept = np.array(values.kept_R.get(i, [True] * len(at)), bool)
            flags[:] = TOO_OLD
            flags[at] = CLIPPED * (clipped_N[ends[i] : ends[i + 1]] > 0) + FILTERED * ~kept
            notes.reasons[g] = None if advantages[at].any() else "zero_advantage"
            sampler = np.array(at_trained(fresh, fresh.behaviour_logprobs))
            if len(differences := np.abs(ours - sampler)[sampler <= 0]):
                notes.diff_mean[g], notes.diff_max[g] = differences.mean(), differences.max()
        if G:
            yield notes
