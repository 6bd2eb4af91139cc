"""atropos data wins: the games of a run against its earlier versions, by version.

atropos data wins runs/a                        mean reward against each version
atropos data wins runs/a --score won env=chess  the named reward ``won``, in chess

An opponent is an endpoint that an environment opened with a ``version``. Filters are as on the
page; version_min=100 takes the games from version 100 of the policy on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.api.archive.load import place
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.cli.collect.rollout_files import options_and_filters
from atroposlib.errors import ConfigError
from atroposlib.utils.command.parser import CommandParser

USAGE = "RUN [--score NAME] [NAME=VALUE ...]"
REWARD = "reward"
VERSION, FALLBACK = "/version", "/fallback"
NO_GAMES = (
    "no rollout of this run has an opponent: model.endpoint(NAME, version='pool') opens one"
)


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
        variance = max(0.0, self.squares / self.count - self.mean**2)
        return math.sqrt(variance / max(1, self.count - 1))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = CommandParser(
        prog="atropos data wins", description=__doc__, usage=f"%(prog)s {USAGE}"
    )
    parser.add_argument("run", type=place, help="folder of a run, or its data directory")
    about = "named reward that counts as the score (%(default)s)"
    parser.add_argument("--score", default=REWARD, metavar="NAME", help=about)
    options, filters = options_and_filters(parser, argv)
    rollouts = RunRollouts(options.run, filters.pop("run_id", None), filters, text=True)
    records = (record for block in rollouts.named_rewards() for record in block)
    print(wins_table(games_by_opponent(records, options.score)))
    return 0


def games_by_opponent(
    records: Iterable[Mapping[str, Any]], score: str
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
        for name in [key.removesuffix(FALLBACK) for key in named if key.endswith(FALLBACK)]:
            version = named.get(f"{name}{VERSION}")
            opponent = name, None if version is None else int(version)
            games.setdefault(opponent, Games()).add(value, record.get("version_max"))
    return games


def wins_table(games: Mapping[tuple[str, int | None], Games]) -> str:
    """The table, an opponent a line; the present version comes last.

    Raises ConfigError: there are no games.
    """
    if not games:
        raise ConfigError(NO_GAMES)
    rows = [("opponent", "version", "games", "score", "newest policy")]
    ordered = sorted(games, key=lambda key: (key[0], key[1] is None, key[1] or 0))
    for name, version in ordered:
        played = games[name, version]
        shown = "present" if version is None else str(version)
        score = f"{played.mean:.3f} ± {played.stderr:.3f}"
        newest = "" if played.newest < 0 else str(played.newest)
        rows.append((name, shown, str(played.count), score, newest))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
