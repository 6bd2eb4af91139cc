"""Tic-tac-toe against opponents other than the engine."""

from __future__ import annotations

import json
import random

import pytest

from atroposlib.envs.base import APIServerConfig
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ALPHABET, char_tokenizer
from docs.examples.legal_games import legal_moves
from environments.library.tic_tac_toe import (
    cell_of,
    openings,
    other,
    question,
    tic_tac_toe,
    won,
)


def test_openings_are_all_positions_of_up_to_three_moves():
    tasks = openings()
    assert len(tasks) == 1 + 9 + 9 * 8 + 9 * 8 * 7 // 2  # X has placed two of three alike
    assert not any(won(task["board"], "X") or won(task["board"], "O") for task in tasks)
    for task in tasks:
        marks = task["board"].replace(" ", "")
        assert task["me"] == "XO"[len(marks) % 2]


def test_legal_moves_are_cells_that_the_question_shows_as_free():
    for task in openings()[::50]:
        for asked, reply in legal_moves(task, random.Random(0)):
            assert reply["content"] in asked["content"].split("\n", 1)[1]


@pytest.fixture
async def play(tmp_path):
    """Run one item against an opponent; the fake takes the first free cell."""
    fake = FakeInference(reply=first_free)
    fake.cards = [{"id": "fake"}, {"id": "fake@7"}]
    with fake.running() as url:

        async def run(**settings):
            path = tmp_path / "groups.jsonl"
            config = tic_tac_toe.env_config_cls(
                bare=True, history=False, group_size=2, total_steps=1, max_num_workers=1,
                use_wandb=False, data_path_to_save_groups=str(path), **settings,
                ensure_scores_are_not_same=False, eval_fraction=0.0,
            )  # fmt: skip
            server = APIServerConfig(
                base_url=f"{url}/v1", server_type="vllm", model_name="fake"
            )
            env = tic_tac_toe(config, [server])
            env.tokenizer = char_tokenizer(ALPHABET)
            await env.process_manager()
            return fake, [json.loads(line) for line in path.read_text().splitlines()]

        yield run


def first_free(prompt, index):
    board = prompt.split("<|user|>")[-1].split("<|end|>")[0].split("\n", 1)[1]
    return next(character for character in board if character.isdigit())


async def test_opponent_of_the_pool_plays_its_version_and_rows_have_a_role(play):
    fake, groups = await play(opponent="pool")
    assert {body.get("model") for _, body in fake.requests} == {None, "fake@7"}
    group = groups[0]
    assert group["metadata"]["metrics"]["opponent/version"] == 7.0
    roles = {row["role"] for row in group["metadata"]["rows"]}
    assert len(roles) == 1 and roles <= {"X", "O"}
    assert group["scores"][0] == group["scores"][1]  # both players are deterministic


async def test_random_opponent_is_the_same_in_every_sample_of_a_task(play):
    _, groups = await play(opponent="random")
    for group in groups:
        assert len(set(group["scores"])) == 1
        assert "opponent/version" not in group["metadata"]["named_rewards"][0]


def test_reply_is_a_free_cell_or_nothing():
    board = "X" + " " * 8
    assert cell_of(" 2 ", board) == 1
    assert [cell_of(reply, board) for reply in ("1", "0", "10", "two", "")] == [None] * 5
    assert question(board, other("X"), True, True).startswith("o\nx 2 3\n")
