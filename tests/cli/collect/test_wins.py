"""atropos data wins: games by the version of the opponent."""

from __future__ import annotations

import pytest

from atroposlib.api.archive.wins import games_by_opponent, wins_by_version
from atroposlib.cli.collect import wins
from atroposlib.errors import ConfigError
from tests.api.archive.test_wins import GAMES


def test_table_is_ordered_by_version_and_the_present_one_is_last():
    table = wins.wins_table(wins_by_version(games_by_opponent(GAMES, "won")))
    assert table.splitlines() == [
        "opponent  version  games  score          newest policy",
        "opponent  2        2      0.500 ± 0.500  9",
        "opponent  10       1      0.000 ± 0.000  9",
        "opponent  present  1      1.000 ± 0.000  9",
    ]


def test_run_without_opponents_is_named():
    with pytest.raises(ConfigError, match="has an opponent"):
        wins.wins_table(wins_by_version(games_by_opponent(GAMES[-2:], "reward")))


def test_words_that_are_no_filters_end_with_status_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        wins.main([str(tmp_path), "fast"])
    assert ended.value.code == 2 and "unknown argument fast" in capsys.readouterr().err
