"""Delivery of groups: rejected groups are counted, accepted groups are saved and sent exactly once.

AcceptedGroup -> jsonl file -> POST with an idempotency key -> stored by the rollout API
                                |-- another run by now: dropped, counted, its item requeued
                                '-- 4xx: dropped, counted
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mode
from typing import Any

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.journal.journalled_rollout import rollout_here
from atroposlib.envs.rollout.causes import Repeats, comparable_text
from atroposlib.envs.rollout.filters import (
    AcceptedGroup,
    FilterRules,
    RejectedGroup,
    RejectReason,
    filter_group,
)
from atroposlib.envs.rollout.groups import ScoredDataGroup, item_label, unknown_fields
from atroposlib.envs.rollout.token_account import (
    RowCount,
    end_group,
    rows_of_columns,
    rows_of_group,
)
from atroposlib.envs.runtime.reports import Reports
from atroposlib.errors import (
    AtroposError,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    UnknownEnv,
)
from atroposlib.generation.sessions.recording import recorded_here
from atroposlib.wire import EnvRegistered
from atroposlib.wire.status import (
    JOURNALLED,
    POSTED,
    drop_state,
)

logger = logging.getLogger(__name__)


class GroupStats:
    """Counts of the groups and samples of a run, by outcome."""

    def __init__(self) -> None:
        self.kept_since_log = 0  # since metrics were last logged
        self.sent = 0  # accepted by the rollout API
        self.dropped: Counter[str] = Counter()  # groups per reason
        self.allowed: Counter[str] = Counter()  # kept, but dropped by stricter rules
        self.samples: Counter[str] = Counter()  # failed samples per outcome of the record
        self.failures = Repeats()
        self.recent: deque[tuple[RejectReason, str] | None] = deque(maxlen=16)  # None: sent
        self.rewards: deque[float] = deque(maxlen=64)  # means of the last groups sent
        self._warned_of: set[str] = set()
        self.reports = Reports()

    def add_kept(self, groups: int) -> None:
        """Count groups that were kept, until :meth:`restart_log`."""
        self.kept_since_log += groups

    def restart_log(self) -> None:
        """Count kept groups anew, after metrics were logged."""
        self.kept_since_log = 0

    def add_sent(self, groups: Sequence[AcceptedGroup]) -> None:
        """Count groups that the rollout API accepted."""
        self.sent += len(groups)
        for group in groups:
            end_group(POSTED, rows_of_accepted(group))
        self.recent.extend([None] * len(groups))
        self.rewards.extend(float(group.columns.scores.mean()) for group in groups)

    def drop(
        self,
        reason: RejectReason,
        detail: str,
        item: Any,
        group: Mapping[str, Any] | None = None,
    ) -> None:
        """Count a dropped group; log the first of each reason and detail."""
        self.dropped[reason.value] += 1
        end_group(drop_state(reason.value), rows_of_group(group))
        self.reports.drop(reason.value, group)
        self.recent.append((reason, detail))
        if reason is RejectReason.SAME_SCORES:
            logger.debug("group of item %s dropped: %s", item_label(item), detail)
            return
        text = f"group of item {item_label(item)} dropped, {reason.value}: {detail}"
        self.failures.note((reason.value, comparable_text(detail)), text)

    def mostly_dropped(self) -> str | None:
        """The share and the reason if most of the last groups were dropped, else None."""
        lost, count = [event for event in self.recent if event], len(self.recent)
        if len(lost) < 3 or 2 * len(lost) < count:
            return None
        reason = mode(reason for reason, _ in lost)
        text = f"{len(lost)} of the last {count} groups dropped, {reason.value}"
        return f"{text}: {dict(lost)[reason]}"

    def sample_failed(
        self, outcome: str, error: AtroposError | None = None, count: int = 1
    ) -> None:
        """Count samples by their outcome, for example env_error or context_full; log the first."""
        self.samples[outcome] += count
        if error is not None:
            self.failures.count_error(error)

    def warn_of_unknown(self, group: Mapping[str, Any]) -> None:
        """Log a warning, once per name, for each field that the record does not have."""
        for name in set(unknown_fields(group)) - self._warned_of:
            self._warned_of.add(name)
            logger.warning("a group carries %r, which the record does not: not sent", name)

    def by_reason(self) -> dict[str, int]:
        """``dropped_<reason>`` in groups, and ``samples_<outcome>``."""
        dropped = {f"dropped_{reason}": count for reason, count in self.dropped.items()}
        return dropped | {f"samples_{name}": count for name, count in self.samples.items()}

    def recent_reward(self) -> dict[str, float]:
        """The mean of the last rewards, under "reward"; empty before the first group."""
        return {"reward": sum(self.rewards) / len(self.rewards)} if self.rewards else {}

    def totals(self) -> dict[str, int]:
        """All counts, for heartbeats and the log."""
        dropped = sum(self.dropped.values())
        return {"groups_sent": self.sent, "groups_dropped": dropped, **self.by_reason()}


def rows_of_accepted(accepted: AcceptedGroup) -> list[RowCount]:
    """Trained tokens and version of each row, as the rollout API counts them."""
    columns = accepted.columns
    lengths = [int(length) for length in columns.seq_lens]
    return rows_of_columns(lengths, accepted.trained_lengths(), columns.versions)


async def filter_groups(
    groups: Sequence[ScoredDataGroup], rules: FilterRules, group_stats: GroupStats, item: Any
) -> list[AcceptedGroup]:
    """The accepted groups of ``groups``; the rest are counted."""
    # In a thread: 10^6 tokens take a tenth of a second, which would block every rollout.
    nodes = list(recorded_here())
    judged = await asyncio.to_thread(
        lambda: [filter_group(group, rules, nodes) for group in groups]
    )
    for group, verdict in zip(groups, judged):
        group_stats.warn_of_unknown(group)
        if isinstance(verdict, RejectedGroup):
            group_stats.drop(verdict.reason, verdict.detail, item, group)
        else:
            group_stats.allowed.update(fault.reason.value for fault in verdict.faults)
    return [verdict for verdict in judged if isinstance(verdict, AcceptedGroup)]


@dataclass
class GroupSender:
    """Sends accepted groups to the current run of the rollout API."""

    client: AsyncRolloutClient
    registration: Callable[[], EnvRegistered]  # returns the current registration
    stats: GroupStats
    group_size: int
    # Called with a registration that the API does not know any more.
    re_register: Callable[[EnvRegistered], Awaitable[EnvRegistered]]
    requeue: Callable[[Any], None]  # receives an item whose groups were for a run that is over
    accepted_sequences: int = 0
    _instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    _counter: Iterator[int] = field(default_factory=itertools.count)

    @property
    def accepted_groups(self) -> int:
        """Groups accepted so far, in units of the configured group size."""
        return math.ceil(self.accepted_sequences / self.group_size)

    def next_key(self) -> str:
        """A key that is unique among all environments; it identifies a repeated post."""
        return f"{self._instance}-{next(self._counter)}"

    async def send(
        self, groups: Sequence[AcceptedGroup], item: Any, sampled_for: str
    ) -> Sequence[AcceptedGroup]:
        """Send ``groups`` in a single request; return the groups, or nothing if dropped.

        ``sampled_for`` is the id of the run for which they were sampled: their policy versions
        have no meaning in another run. Raises RolloutApiUnavailable: the API was absent longer
        than the client waits.
        """
        try:
            refusal = await self._send_until_settled(groups, sampled_for)
        except (asyncio.CancelledError, AtroposError) as error:
            rollout = rollout_here()
            if rollout is not None and rollout.is_kept:
                for group in groups:  # the next life of this environment sends it
                    end_group(JOURNALLED, rows_of_accepted(group))
            else:
                detail = str(error) or "stopped before it was sent"
                self._drop(groups, RejectReason.UNSENT, detail, item)
            raise
        if refusal is not None:
            self._drop(groups, *refusal, item)
            if refusal[0] is RejectReason.RUN_ENDED and item is not None:
                self.requeue(item)
            return []
        self.stats.add_sent(groups)
        self.accepted_sequences += sum(group.sequences for group in groups)
        return groups

    async def _send_until_settled(
        self, groups: Sequence[AcceptedGroup], sampled_for: str
    ) -> tuple[RejectReason, str] | None:
        """The reason why the API rejected the groups; None: accepted."""
        while True:
            registration = self.registration()
            if registration.run_id != sampled_for:
                return RejectReason.RUN_ENDED, "the run it was for was reset"
            columns = [group.as_sent(registration.env_id) for group in groups]
            try:
                await self.client.send_groups(columns, run_id=registration.run_id or None)
            except (UnknownEnv, NotRegistered):
                await self.re_register(registration)
                continue
            except RolloutApiRefused as refusal:
                return RejectReason.REFUSED, str(refusal)
            except KeyConflict as known:
                # Keys are unique, so an earlier post arrived and its reply was lost. A new
                # registration in between changed the number, and with it the bytes.
                logger.warning("%s: it had arrived before", known)
            return None

    def _drop(
        self, groups: Sequence[AcceptedGroup], reason: RejectReason, detail: str, item: Any
    ) -> None:
        for group in groups:
            self.stats.drop(reason, detail, item, group.group)
