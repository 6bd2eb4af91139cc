"""atropos data wins: the games of a run against its earlier versions, by version.

atropos data wins runs/a                        mean reward against each version
atropos data wins runs/a --score won env=chess  the named reward ``won``, in chess

An opponent is an endpoint that an environment opened with a ``version``. Filters are as on the
page; version_min=100 takes the games from version 100 of the policy on.
"""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.api.archive.load import place
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.archive.wins import (
    REWARD,
    OpponentWins,
    games_by_opponent,
    wins_by_version,
)
from atroposlib.cli.collect.rollout_files import options_and_filters
from atroposlib.errors import ConfigError
from atroposlib.text.lines import aligned_lines
from atroposlib.utils.command.parser import CommandParser

USAGE = "RUN [--score NAME] [NAME=VALUE ...]"
NO_GAMES = (
    "no rollout of this run has an opponent: model.endpoint(NAME, version='pool') opens one"
)


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
    print(wins_table(wins_by_version(games_by_opponent(records, options.score))))
    return 0


def wins_table(opponents: Sequence[OpponentWins]) -> str:
    """The table, an opponent a line.

    Raises ConfigError: there are no games.
    """
    if not opponents:
        raise ConfigError(NO_GAMES)
    rows = [("opponent", "version", "games", "score", "newest policy")]
    for played in opponents:
        version = "present" if played.version is None else str(played.version)
        score = f"{played.score:.3f} ± {played.stderr:.3f}"
        newest = "" if played.newest is None else str(played.newest)
        rows.append((played.opponent, version, str(played.games), score, newest))
    return "\n".join(aligned_lines(rows))
