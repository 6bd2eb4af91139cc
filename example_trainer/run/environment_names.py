"""Names of the environments of a batch, which select their algorithms.

A group has the number of its environment; the rollout API knows the name behind it. Rank 0 asks when
a number is new, writes the name into the group, and the batch takes it to all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

from atroposlib.settings.sentences import did_you_mean
from atroposlib.wire import EnvShare, RunStatus, ScoredData
from example_trainer.run.metrics_log import warn_once

PROCESS_NUMBER = re.compile(r"_[0-9]+$")  # the API numbers the processes of an environment


class StatusSource(Protocol):
    def status(self) -> RunStatus: ...


class EnvironmentNames:
    """Names of environments by their number.

    Args:
        source: a client of the rollout API.
        wanted: names that have an algorithm; without any, nothing is asked.
    """

    def __init__(self, source: StatusSource, wanted: Collection[str]) -> None:
        self._source, self._wanted = source, wanted
        self._names: dict[int, str] = {}

    def write_into(self, groups: Sequence[ScoredData]) -> None:
        """Write the name of its environment into the metadata of each group."""
        numbers = {group.env_id for group in groups} - {None}
        if not self._wanted or not numbers:
            return
        if numbers - self._names.keys():
            self._ask()
        for group in groups:
            name = self._names.get(-1 if group.env_id is None else group.env_id)
            if name is not None:
                group.metadata = {**(group.metadata or {}), "env": name}

    def _ask(self) -> None:
        shares = self._source.status().shares
        self._names |= {
            share.env_id: self._name_of(share) for share in shares if share.env_id is not None
        }
        names = sorted(set(self._names.values()))
        for name in self._wanted:
            if name not in names:
                warn_once(
                    f"algorithms.{name}: no environment of this name has registered"
                    f"{did_you_mean(name, names)} (there are: {', '.join(names)})"
                )

    def _name_of(self, share: EnvShare) -> str:
        """The name under which an environment registered, without the number of its process."""
        return share.name if share.name in self._wanted else PROCESS_NUMBER.sub("", share.name)
