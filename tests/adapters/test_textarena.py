"""Games of textarena: players, ends, and games that cannot be played here."""

from __future__ import annotations

import os
import random
import re
import sys
import textwrap
from pathlib import Path

import pytest

from atroposlib.adapters.textarena import REFUSALS, Match, TextArenaConfig, textarena, training
from atroposlib.envs.function_env.card import play
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "textarena"
TWO = {"env_id": "TicTacToe-v0"}


def game(env_id, seed=3, **settings):
    return Match(TextArenaConfig(env_id=env_id, **settings), seed)


def played(one, actions):
    """What each turn shows, and the rewards."""
    shown = []
    for action in actions:
        shown.append(one.observe())
        if one.step(action):
            break
    return shown, one.close()[0]


def test_a_player_reads_what_is_new_since_its_last_turn():
    shown, _ = played(game("GuessTheNumber-v0"), ["[1]", "[2]", "[3]"])
    assert [player for player, _ in shown] == [0, 0, 0]
    assert "between 1 and 20" in shown[0][1] and "between" not in shown[1][1]
    assert "higher" in shown[1][1]
    raw, _ = played(game("GuessTheNumber-v0-raw"), ["[1]", "[2]"])
    assert "between" in raw[0][1] and "higher" in raw[1][1]


def test_a_seed_gives_the_same_game_whatever_else_draws_random_numbers():
    random.seed(11)
    before = random.getstate()
    alone, other = game("GuessTheNumber-v0", 5), game("GuessTheNumber-v0", 6)
    assert random.getstate() == before
    numbers = []
    for one in (alone, other, game("GuessTheNumber-v0", 5)):
        random.random()
        numbers.append(one.env.state.game_state["game_number"])
    assert numbers[0] == numbers[2]
    boards = []
    for disturbed in (False, True):
        one, random_game = game("2048-v0", 5), game("2048-v0", 9)
        for move in ("[up]", "[left]", "[down]", "[right]") * 2:
            if disturbed:
                random_game.step(move)
                random.random()
            one.step(move)
        boards.append(one.env.state.game_state["board"])
    assert boards[0] == boards[1]  # tiles are drawn at every step


def test_the_fewest_players_of_a_game_are_found():
    assert game("TicTacToe-v0").players == 2
    assert game("Sudoku-v0").players == 1
    with pytest.raises(ConfigError, match="TicTacToe-v0: AssertionError: .*has to be 2"):
        game("TicTacToe-v0", players=5)


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        ("Nope-v0", "not found in registry"),
        ("TwentyQuestions-v0", "API key not found"),
        ("Hangman-v0", "Resource 'words' not found"),
        ("Wordle-v0", "Resource 'words' not found"),
    ],
)
def test_a_game_that_cannot_be_made_is_refused_in_setup_and_downloads_nothing(
    env_id, reason, monkeypatch, tmp_path
):
    import nltk

    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=rf"--env.env_id {env_id}: \w+: .*{reason}"):
        game(env_id)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="valid syntax from Python 3.12 on")
def test_a_game_of_a_newer_python_is_refused():
    with pytest.raises(ConfigError, match="Chess-v0: SyntaxError"):
        game("Chess-v0")


async def test_a_word_list_of_a_folder_is_used(monkeypatch, tmp_path):
    import nltk

    (tmp_path / "corpora" / "words").mkdir(parents=True)
    for name in ("en", "en-basic"):
        (tmp_path / "corpora" / "words" / name).write_text("apple\nbread\ngrape\n")
    (tmp_path / "corpora" / "words" / "README").write_text("")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    assert "hangman" in game("Hangman-v0").observe()[1].lower()


def playable():
    """Families of games that can be made, shown and played a turn."""
    from textarena.envs.registration import ENV_REGISTRY

    found = set()
    for env_id in sorted(ENV_REGISTRY):
        if env_id.endswith("-v0"):
            try:
                one = game(env_id)
                one.observe()
                one.step("[0]")
            except (ConfigError, *REFUSALS):
                continue
            found.add(env_id.removesuffix("-v0"))
    return ", ".join(sorted(found))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the page has those of 3.11")
def test_the_games_of_the_page_are_those_that_can_be_played(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    page = Path(__file__).parents[2] / "docs" / "adapters.md"
    before, begin, rest = page.read_text().partition("<!-- games -->\n")
    shown, end, after = rest.partition("<!-- /games -->")
    made = textwrap.fill(playable(), 105, break_on_hyphens=False) + "\n"
    if os.environ.get("ATROPOS_REFRESH") == "1":
        page.write_text(before + begin + made + end + after)
    assert shown == made, "ATROPOS_REFRESH=1 make adapters writes it"


def bisected(prompt, i):
    low, high = 1, 20
    for number, hint in re.findall(r"\[(\d+)\]<\|end\|>.*?(higher|lower)", prompt, re.S):
        low, high = (int(number) + 1, high) if hint == "higher" else (low, int(number) - 1)
    return f"[{(low + high) // 2}]"


async def test_a_game_of_one_player_is_one_row_scored_by_its_end(
    make_env, groups_made, trained_text
):
    with FakeInference(reply=bisected).running() as url:
        env = make_env(textarena, url, group_size=2)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [1.0, 1.0]
    metrics = group["metadata"]["metrics"]
    assert (metrics["truncated"], metrics["invalid"]) == (0.0, 0.0)
    said = trained_text(env, group, 0)
    assert said.startswith("[10]<|end|>") and said.count("<|end|>") == metrics["turns"]
    assert group["metadata"]["source"]["package"] == "textarena 0.7.4"


@pytest.mark.parametrize("self_play", [True, False])
async def test_each_player_has_its_own_groups_and_rewards(make_env, groups_made, self_play):
    def reply(prompt, i):  # 0 takes the first free square, 1 the last: 0 wins by 0, 1, 2
        free = re.findall(r"'\[(\d)\]'", prompt.rpartition("Available Moves")[2])
        return f"[{free[0] if 'You are Player 0' in prompt else free[-1]}]"

    with FakeInference(reply=reply).running() as url:
        env = make_env(
            textarena, url, group_size=2, self_play=self_play, max_num_workers=1, **TWO
        )
        groups = await groups_made(env, 1 + self_play)
    by_seat = {group["metadata"]["endpoint"]: group["scores"] for group in groups}
    both = {"player0": [1.0, 1.0], "player1": [-1.0, -1.0]}
    assert by_seat == (both if self_play else {"player0": [1.0, 1.0]})
    assert groups[0]["metadata"]["metrics"]["player1/reward"] == -1.0


async def test_a_cut_game_has_no_score_but_that_of_the_settings(make_env, groups_made):
    with FakeInference(reply=lambda prompt, i: "[1]").running() as url:
        cut = {"group_size": 2, "max_turns": 1, "max_num_workers": 1}
        env = make_env(textarena, url, cut_reward=0.0, **cut)
        (group,) = await groups_made(env, 1)
        assert group["scores"] == [0.0, 0.0]
        assert group["metadata"]["metrics"]["truncated"] == 1.0
        with pytest.raises(OnlyFailures, match="None"):
            await make_env(textarena, url, **cut).process_manager()


async def test_a_conversation_without_room_is_cut_or_refused(make_env, groups_made):
    with FakeInference(reply=lambda prompt, i: "[1]").running() as url:
        env = make_env(
            textarena, url, group_size=1, max_tokens=8, max_token_length=700, cut_reward=0.5
        )
        (group,) = await groups_made(env, 1)
        assert group["scores"] == [0.5] and len(group["tokens"][0]) <= 700
        with pytest.raises(OnlyFailures, match="no room for a turn"):
            await make_env(textarena, url, max_token_length=64).process_manager()


async def test_evaluated_games_are_those_of_the_first_seeds(make_env, evaluated):
    with FakeInference(reply=bisected).running() as url:
        metrics, samples = await evaluated(make_env(textarena, url, eval_items=3))
    assert [sample["task"]["seed"] for sample in samples] == [0, 1, 2]
    assert metrics["reward"] == 1.0


@pytest.mark.slow
async def test_a_tiny_model_plays_a_group_alone_and_against_itself(sampled):
    group = (await sampled(textarena, max_tokens=16))[0]
    assert group["metadata"]["metrics"]["invalid"] == 1.0  # random letters are no guess
    groups = await sampled(textarena, max_tokens=16, cut_reward=0.0, **TWO)
    # Random letters are illegal moves, so the second player may never have a turn.
    assert "player0" in {group["metadata"]["endpoint"] for group in groups}


async def test_a_game_that_fails_is_raised_and_never_a_score(monkeypatch):
    def broken(self, action):
        raise OSError("the board is gone")

    monkeypatch.setattr(Match, "step", broken)
    task = next(training(TextArenaConfig()))
    with pytest.raises(OSError, match="the board is gone"):
        await play(textarena, task, ["[1]"])
