"""Games by the version of the opponent, of records and of a run."""

from __future__ import annotations

from dataclasses import asdict

from atroposlib.api.archive import wins
from atroposlib.api.archive.wins import OpponentWins, games_by_opponent
from tests.api.harness import sampled


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
    games = games_by_opponent(GAMES, "reward")
    assert {key: (played.count, played.mean) for key, played in games.items()} == {
        ("opponent", 2): (2, 0.5),
        ("opponent", 10): (1, -1.0),
        ("opponent", None): (1, 1.0),
    }
    assert games["opponent", 2].stderr == 0.5  # sqrt(0.25 / 1)


def test_numbers_of_any_size_are_counted_without_an_overflow():
    games = games_by_opponent([game(2, 1e300), game(2, -1e300), game(1e300, 1.0)], "reward")
    [(opponent, played)] = games.items()
    assert opponent == ("opponent", 2) and played.count == 2
    assert played.stderr == float("inf")


async def posted_games(api):
    """Two rollouts against version 4 in one group, a rollout against the present one in another."""
    [env_id] = await api.started(batch_size=4)
    against = {"opponent/fallback": 0.0, "opponent/version": 4.0}
    games = [
        [{"won": 1.0, **against}, {"won": 0.0, **against}],
        [{"won": 1.0, "opponent/fallback": 1.0}, {"won": 1.0}],  # the second has no opponent
    ]
    for mark, named in enumerate(games, 1):
        body = sampled(5, mark=mark, env_id=env_id, metadata={"named_rewards": named})
        assert (await api.http.post("/scored_data", json=body)).status_code == 200
    assert api.service.context.indexer.flush(600.0)


async def test_a_run_has_its_games_by_version_with_the_scores_that_can_be_asked_for(api):
    await posted_games(api)
    assert await api.get("/explore/wins?score=won") == {
        "scores": ["reward", "won"],
        "opponents": [
            asdict(OpponentWins("opponent", 4, 2, 0.5, 0.5, 5)),
            asdict(OpponentWins("opponent", None, 1, 1.0, 0.0, 5)),
        ],
        "exact": True,
    }
    [by_reward, _] = (await api.get("/explore/wins"))["opponents"]
    assert by_reward["score"] == 0.5  # of the two rollouts
    assert (await api.get("/explore/wins?env=other"))["opponents"] == []
    assert (await api.http.get("/explore/wins?q=x")).status_code == 422


async def test_games_that_are_not_read_in_time_are_left_out_and_the_reply_is_not_exact(
    api, monkeypatch
):
    await posted_games(api)
    monkeypatch.setattr(wins, "BLOCK_ROWS", 2)
    monkeypatch.setattr(wins, "READ_S", -1.0)
    reply = await api.get("/explore/wins?score=won")
    assert reply == {"scores": ["reward"], "opponents": [], "exact": False}
    monkeypatch.setattr(wins, "READ_S", 600.0)
    assert [line["games"] for line in (await api.get("/explore/wins"))["opponents"]] == [2, 1]
