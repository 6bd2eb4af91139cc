"""atropos data wins: games by the version of the opponent."""

from __future__ import annotations

import pytest

from atroposlib.cli.collect import wins
from atroposlib.errors import ConfigError


def game(version, reward, group="a@0", **more):
    named = {"opponent/fallback": float(version is None), "won": float(reward > 0)}
    named |= {} if version is None else {"opponent/version": float(version)}
    return {"rewards": named, "reward": reward, "group_id": group, "version_max": 9, **more}


GAMES = [
    game(2, 1.0),
    game(2, 0.0),
    game(10, -1.0),
    game(None, 1.0),
    game(2, 1.0, group="a@0#2"),  # a further row of the first game
    {"rewards": {"won": 1.0}, "reward": 1.0, "group_id": "b"},  # without an opponent
    {"rewards": None, "reward": 1.0, "group_id": "c"},
]


def test_each_version_has_its_mean_score_and_a_rollout_counts_once():
    games = wins.games_by_opponent(GAMES, "reward")
    assert {key: (played.count, played.mean) for key, played in games.items()} == {
        ("opponent", 2): (2, 0.5),
        ("opponent", 10): (1, -1.0),
        ("opponent", None): (1, 1.0),
    }
    assert games["opponent", 2].stderr == 0.5  # sqrt(0.25 / 1)


def test_table_is_ordered_by_version_and_the_present_one_is_last():
    table = wins.wins_table(wins.games_by_opponent(GAMES, "won"))
    assert table.splitlines() == [
        "opponent  version  games  score          newest policy",
        "opponent  2        2      0.500 ± 0.500  9",
        "opponent  10       1      0.000 ± 0.000  9",
        "opponent  present  1      1.000 ± 0.000  9",
    ]


def test_run_without_opponents_is_named():
    with pytest.raises(ConfigError, match="has an opponent"):
        wins.wins_table(wins.games_by_opponent(GAMES[-2:], "reward"))


def test_words_that_are_no_filters_end_with_status_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        wins.main([str(tmp_path), "fast"])
    assert ended.value.code == 2 and "unknown argument fast" in capsys.readouterr().err
