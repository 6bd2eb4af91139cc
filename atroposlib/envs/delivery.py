"""Groups on their way out: kept or dropped for a counted reason, saved, sent exactly once.

group -> reason_to_drop -> jsonl file -> POST with an idempotency key -> accepted
             |                                  |-- other run now: dropped, counted
             '-- counted, logged                '-- 4xx: dropped, counted
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.groups import (
    Drop,
    ScoredDataGroup,
    item_label,
    plain,
    to_wire,
    unknown_fields,
)
from atroposlib.errors import NotRegistered, RolloutApiRefused, UnknownEnv
from atroposlib.wire import EnvRegistered

logger = logging.getLogger(__name__)


class Tally:
    """What became of the groups of one run."""

    def __init__(self) -> None:
        self.kept = 0
        self.sent = 0  # accepted by the rollout API
        self.dropped: Counter[str] = Counter()  # per reason
        self._warned_of: set[str] = set()

    def drop(self, reason: Drop, detail: str, item: Any) -> None:
        """Count a dropped group and say why."""
        self.dropped[reason.value] += 1
        level = logging.DEBUG if reason is Drop.SAME_SCORES else logging.WARNING
        logger.log(
            level, "group of item %s dropped, %s: %s", item_label(item), reason.value, detail
        )

    def warn_of_unknown(self, group: Mapping[str, Any]) -> None:
        """Say once per name that the record has no such field."""
        for name in set(unknown_fields(group)) - self._warned_of:
            self._warned_of.add(name)
            logger.warning("a group carries %r, which the record does not: not sent", name)

    def totals(self) -> dict[str, float | int | str]:
        """The counts as numbers, for heartbeats and metrics."""
        reasons = {f"dropped_{reason}": count for reason, count in self.dropped.items()}
        return {
            "groups_sent": self.sent,
            "groups_dropped": sum(self.dropped.values()),
            **reasons,
        }


class Sender:
    """Sends kept groups to one run of the rollout API.

    ``rejoin`` is called when the API does not know this environment; it returns the new
    registration.
    """

    def __init__(
        self,
        client: AsyncRolloutClient,
        registration: EnvRegistered,
        tally: Tally,
        *,
        group_size: int,
        rejoin: Callable[[EnvRegistered], Awaitable[EnvRegistered]],
    ) -> None:
        self.registration = registration
        self.accepted_sequences = 0
        self._client = client
        self._tally = tally
        self._group_size = group_size
        self._rejoin = rejoin
        self._instance = uuid.uuid4().hex
        self._counter = itertools.count()

    @property
    def accepted_groups(self) -> int:
        """What was accepted so far, in groups of the configured size."""
        return math.ceil(self.accepted_sequences / self._group_size)

    async def send(
        self, groups: list[ScoredDataGroup], item: Any, sampled_for: str
    ) -> list[ScoredDataGroup]:
        """Send ``groups`` in one request and return them, or nothing if they were dropped.

        ``sampled_for`` is the run id under which they were sampled: its version numbers
        mean nothing to another run.

        Raises:
            RolloutApiUnavailable: the API stayed away longer than the client waits.
        """
        keys = [f"{self._instance}-{next(self._counter)}" for _ in groups]
        while True:
            registration = self.registration
            if registration.run_id != sampled_for:
                for _ in groups:
                    self._tally.drop(Drop.RUN_ENDED, "the run it was for was reset", item)
                return []
            records = [
                to_wire(
                    group,
                    env_id=registration.env_id,
                    idempotency_key=key,
                    group_id=group.get("group_id") or key,
                )
                for group, key in zip(groups, keys)
            ]
            try:
                await self._client.send_groups(records, run_id=registration.run_id)
            except (UnknownEnv, NotRegistered):
                self.registration = await self._rejoin(registration)
                continue
            except RolloutApiRefused as refusal:
                for _ in groups:
                    self._tally.drop(Drop.REFUSED, str(refusal), item)
                return []
            self._tally.sent += len(groups)
            self.accepted_sequences += sum(len(group["tokens"]) for group in groups)
            return groups


class GroupFile:
    """The jsonl file of kept groups; every line is on disk before the group is sent.

    It is opened by the first group: a run that makes none leaves no empty file behind.
    """

    def __init__(self, wanted: str) -> None:
        self.path = free_path(Path(wanted))
        self._file: TextIO | None = None

    def write(self, group: Mapping[str, Any]) -> None:
        """Append one group."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("x", encoding="utf-8")
        self._file.write(json.dumps(plain(group), ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()


def free_path(wanted: Path) -> Path:
    """``wanted``, or the first of ``<stem>_1``, ``<stem>_2`` ... that does not exist."""
    path, number = wanted, itertools.count(1)
    while path.exists():
        path = wanted.with_name(f"{wanted.stem}_{next(number)}{wanted.suffix}")
    return path
