"""Groups on their way out: dropped ones counted, kept ones saved and sent exactly once.

Kept -> jsonl file -> POST with an idempotency key -> accepted
                        |-- other run now: dropped, counted, its item rolled out again
                        '-- 4xx: dropped, counted
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.rollout.filters import Drop, Dropped, Kept, Rules, judge
from atroposlib.envs.rollout.groups import ScoredDataGroup, item_label, plain, unknown_fields
from atroposlib.errors import (
    AtroposError,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    UnknownEnv,
)
from atroposlib.wire import EnvRegistered

logger = logging.getLogger(__name__)


class Tally:
    """What became of the groups and samples of one run."""

    def __init__(self) -> None:
        self.kept = 0
        self.sent = 0  # accepted by the rollout API
        self.dropped: Counter[str] = Counter()  # groups per reason
        self.samples: Counter[str] = Counter()  # failed ones per outcome of the record
        self._warned_of: set[str] = set()

    def drop(self, reason: Drop, detail: str, item: Any) -> None:
        """Count a dropped group and say why."""
        self.dropped[reason.value] += 1
        level = logging.DEBUG if reason is Drop.SAME_SCORES else logging.WARNING
        logger.log(
            level, "group of item %s dropped, %s: %s", item_label(item), reason.value, detail
        )

    def sample_failed(self, outcome: str, count: int = 1) -> None:
        """Count samples that gave no score, by what they ended in, such as env_error."""
        self.samples[outcome] += count

    def warn_of_unknown(self, group: Mapping[str, Any]) -> None:
        """Say once per name that the record has no such field."""
        for name in set(unknown_fields(group)) - self._warned_of:
            self._warned_of.add(name)
            logger.warning("a group carries %r, which the record does not: not sent", name)

    def totals(self) -> dict[str, float | int | str]:
        """The counts as numbers, for heartbeats and metrics."""
        return {
            "groups_sent": self.sent,
            "groups_dropped": sum(self.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in self.dropped.items()},
            **{f"samples_{outcome}": count for outcome, count in self.samples.items()},
        }


async def judge_all(
    groups: Sequence[ScoredDataGroup], rules: Rules, tally: Tally, item: Any
) -> list[Kept]:
    """Those of ``groups`` that may be sent; the others are counted."""
    # In a thread: 10^6 tokens take a tenth of a second, and rollouts must not stand still.
    judged = await asyncio.to_thread(lambda: [judge(group, rules) for group in groups])
    for group, verdict in zip(groups, judged):
        tally.warn_of_unknown(group)
        if isinstance(verdict, Dropped):
            tally.drop(verdict.reason, verdict.detail, item)
    return [verdict for verdict in judged if isinstance(verdict, Kept)]


class Sender:
    """Sends kept groups to one run of the rollout API.

    ``rejoin`` is called when the API does not know this environment; it returns the new
    registration. ``take_back`` gets the item whose groups were for a run that is over.
    """

    def __init__(
        self,
        client: AsyncRolloutClient,
        registration: EnvRegistered,
        tally: Tally,
        *,
        group_size: int,
        rejoin: Callable[[EnvRegistered], Awaitable[EnvRegistered]],
        take_back: Callable[[Any], None],
    ) -> None:
        self.registration = registration
        self.accepted_sequences = 0
        self._client = client
        self._tally = tally
        self._group_size = group_size
        self._rejoin = rejoin
        self._take_back = take_back
        self._instance = uuid.uuid4().hex
        self._counter = itertools.count()

    @property
    def accepted_groups(self) -> int:
        """What was accepted so far, in groups of the configured size."""
        return math.ceil(self.accepted_sequences / self._group_size)

    def next_key(self) -> str:
        """A name that no other group of any environment has; a repeated post is known by it."""
        return f"{self._instance}-{next(self._counter)}"

    async def send(
        self, groups: Sequence[Kept], item: Any, sampled_for: str
    ) -> Sequence[Kept]:
        """Send ``groups`` in one request and return them, or nothing if they were dropped.

        ``sampled_for`` is the run id under which they were sampled: its version numbers
        mean nothing to another run.

        Raises:
            RolloutApiUnavailable: the API stayed away longer than the client waits.
        """
        try:
            refusal = await self._send_until_settled(groups, sampled_for)
        except (asyncio.CancelledError, AtroposError) as error:
            self._drop(groups, Drop.UNSENT, str(error) or "stopped before it was sent", item)
            raise
        if refusal is not None:
            self._drop(groups, *refusal, item)
            if refusal[0] is Drop.RUN_ENDED:
                self._take_back(item)
            return []
        self._tally.sent += len(groups)
        self.accepted_sequences += sum(group.sequences for group in groups)
        return groups

    async def _send_until_settled(
        self, groups: Sequence[Kept], sampled_for: str
    ) -> tuple[Drop, str] | None:
        """Why they were not taken; None: they were."""
        while True:
            registration = self.registration
            if registration.run_id != sampled_for:
                return Drop.RUN_ENDED, "the run it was for was reset"
            columns = [group.as_sent(registration.env_id) for group in groups]
            try:
                await self._client.send_groups(columns, run_id=registration.run_id or None)
            except (UnknownEnv, NotRegistered):
                self.registration = await self._rejoin(registration)
                continue
            except RolloutApiRefused as refusal:
                return Drop.REFUSED, str(refusal)
            except KeyConflict as known:
                # Keys are ours alone: it arrived before we had to join again under another
                # number, which makes other bytes of it, and its reply was lost.
                logger.warning("%s: it had arrived before", known)
            return None

    def _drop(self, groups: Sequence[Kept], reason: Drop, detail: str, item: Any) -> None:
        for _ in groups:
            self._tally.drop(reason, detail, item)


class GroupFile:
    """The jsonl file of kept groups; every line is on disk before the group is sent.

    It is opened by the first group: a run that makes none leaves no empty file behind.
    """

    def __init__(self, wanted: str) -> None:
        self.path = free_path(Path(wanted))
        self._file: BinaryIO | None = None

    def write(self, group: Mapping[str, Any]) -> None:
        """Append one group."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
        self._file.write(msgspec.json.encode(group, enc_hook=_shown) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()


def _shown(value: Any) -> Any:
    """For fields that only the file carries: what JSON does not know appears as it prints."""
    known = plain(value)
    return repr(value) if known is value else known


def free_path(wanted: Path) -> Path:
    """``wanted``, or the first of ``<stem>_1``, ``<stem>_2`` ... that does not exist."""
    path, number = wanted, itertools.count(1)
    while path.exists():
        path = wanted.with_name(f"{wanted.stem}_{next(number)}{wanted.suffix}")
    return path
