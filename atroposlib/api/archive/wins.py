"""Games of a run against earlier versions of its policy, by version.

An opponent is an endpoint that an environment opened with a ``version``: the numbers of a rollout
have ``NAME/fallback``, and ``NAME/version`` unless the present version played.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from atroposlib.api.archive.filters import FILTERS, Order, require_known_filters, where
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.row_texts import named_rewards, stored_payloads
from atroposlib.api.archive.selection import ChosenRows
from atroposlib.api.store import Store
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import PackedGroup
from atroposlib.wire.explore import RolloutRow
from atroposlib.wire.numbers import INT64_MAX
from atroposlib.wire.safetensors import MalformedBody

REWARD = "reward"
VERSION, FALLBACK = "/version", "/fallback"
READ_S = 1.0  # limit of reading games for a reply
BLOCK_ROWS = 256
COLUMNS = ("gid", "row", "group_id", "reward", "version_max")
NEWEST_FIRST = Order("gid", descending=True)
Record = Mapping[str, Any]


@dataclass
class Games:
    """Games against an opponent."""

    count: int = 0
    total: float = 0.0  # sum of the scores
    squares: float = 0.0
    newest: int = -1  # newest version of the policy in these games

    def add(self, score: float, version: int | None) -> None:
        self.count += 1
        self.total += score
        self.squares += score * score
        self.newest = max(self.newest, -1 if version is None else version)

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def stderr(self) -> float:
        variance = max(0.0, self.squares / self.count - self.mean * self.mean)
        return math.sqrt(variance / max(1, self.count - 1))


@dataclass(frozen=True)
class OpponentWins:
    """The games against a version."""

    opponent: str  # name of the endpoint
    version: int | None  # None: the present version played
    games: int
    score: float  # mean
    stderr: float
    newest: int | None  # newest version of the policy in these games


@dataclass(frozen=True)
class Wins:
    """GET /explore/wins. ``scores`` are names that the parameter ``score`` takes."""

    scores: list[str]
    opponents: list[OpponentWins]
    exact: bool  # False: the newest games alone, as many as were read in time


def games_by_opponent(
    records: Iterable[Record], score: str
) -> dict[tuple[str, int | None], Games]:
    """Games by the name of the endpoint and the version; None: the present version played.

    A rollout of several rows counts once: its further rows are in groups with ``#``.
    """
    games: dict[tuple[str, int | None], Games] = {}
    for record in records:
        named = record.get("rewards") or {}
        value = record.get("reward") if score == REWARD else named.get(score)
        if value is None or "#" in (record.get("group_id") or ""):
            continue
        for name in opponents_in(named):
            version = named.get(f"{name}{VERSION}")
            if version is not None and abs(version) > INT64_MAX:
                continue  # a number of the environment that is no version
            opponent = name, None if version is None else int(version)
            games.setdefault(opponent, Games()).add(value, record.get("version_max"))
    return games


def opponents_in(named: Mapping[str, float]) -> list[str]:
    """Names of the opponents of a rollout, by its numbers."""
    return [key.removesuffix(FALLBACK) for key in named if key.endswith(FALLBACK)]


def wins_by_version(games: Mapping[tuple[str, int | None], Games]) -> list[OpponentWins]:
    """A line for each opponent and version; the present version comes last."""
    ordered = sorted(games, key=lambda key: (key[0], key[1] is None, key[1] or 0))
    return [
        OpponentWins(
            opponent=name,
            version=version,
            games=(played := games[name, version]).count,
            score=played.mean,
            stderr=played.stderr,
            newest=None if played.newest < 0 else played.newest,
        )
        for name, version in ordered
    ]


def wins_of(index: Index, store: Store, given: Mapping[str, str]) -> Wins:
    """The games that filters let pass, the newest first, as many as are read in ``READ_S``."""
    require_known_filters(given, "score", *FILTERS[:-1])
    filters = {name: value for name, value in given.items() if name != "score"}
    names: set[str] = set()
    end, exact = time.monotonic() + READ_S, True

    def records(chosen: ChosenRows) -> Iterator[Record]:
        nonlocal exact
        for block in _blocks(chosen):
            if time.monotonic() > end:
                exact = False
                return
            for record in _with_numbers(block, index, store):
                if opponents := opponents_in(record["rewards"]):
                    own = tuple(f"{name}/" for name in opponents)
                    names.update(n for n in record["rewards"] if not n.startswith(own))
                    yield record

    with closing(index.reader()) as reader:
        chosen = ChosenRows(reader, where(filters))
        games = games_by_opponent(records(chosen), given.get("score", REWARD))
    return Wins([REWARD, *sorted(names - {REWARD})], wins_by_version(games), exact)


def _blocks(chosen: ChosenRows) -> Iterator[list[dict[str, Any]]]:
    after = None
    while True:
        rows = chosen.page(", ".join(COLUMNS), NEWEST_FIRST, after, BLOCK_ROWS)
        records = [dict(zip(COLUMNS, row)) for row in rows]
        yield records
        if len(rows) < BLOCK_ROWS:
            return
        last = records[-1]
        after = NEWEST_FIRST.key(RolloutRow(gid=last["gid"], row=last["row"]))


def _with_numbers(
    block: list[dict[str, Any]], index: Index, store: Store
) -> Iterator[dict[str, Any]]:
    """The records with the numbers that their environments reported."""
    payloads = stored_payloads(index, store, [record["gid"] for record in block])
    metadata: dict[int, Mapping[str, Any]] = {}
    for gid, payload in payloads.items():
        with suppress(InvalidGroup, MalformedBody):
            metadata[gid] = PackedGroup(payload).head.rest_value("metadata") or {}
    for record in block:
        rewards = named_rewards(metadata.get(record["gid"], {}), record["row"])
        yield {**record, "rewards": rewards}
