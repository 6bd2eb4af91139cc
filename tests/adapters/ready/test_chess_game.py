"""Chess: moves in replies, ends of games, both opponents."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from atroposlib.environments.library import chess_game as game
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError

BACK_RANK = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
STOCKFISH = shutil.which("stockfish")
PACKAGE = "chess"


def answer(move):
    return f"<answer>{move}</answer>"


async def played(fen, *moves, **settings):
    replies = [answer(move) for move in moves]
    task = {"id": "1", "question": "?", "fen": fen, "gold": ""}
    return await play(game.chess_game, task, replies, **settings)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        (answer("Ra8#"), 1.0),
        (answer("Ra8"), 1.0),
        (answer("a1a8"), 1.0),
        (answer("Ra7"), 0.0),
        (answer("--"), 0.0),
        (answer("0000"), 0.0),
        (answer("Ra8 Ra7"), 0.0),
        (answer("Ra7") + answer("Ra8"), 0.0),
        ("Ra8#", 0.0),
    ],
)
async def test_one_move_in_the_tags_that_mates_scores(reply, score):
    task = {"id": "1", "question": "?", "fen": BACK_RANK}
    assert (await play(game.chess_game, task, reply))[0].score == score


def test_tasks_depend_on_the_seed_only_and_have_a_move_that_mates():
    import chess

    made = game.positions.__wrapped__
    first, again, other = (made("mate", False, 4, seed) for seed in (1, 1, 2))
    assert first == again != other
    for task in first:
        board = chess.Board(task["fen"])
        board.push_san(task["gold"])
        assert board.is_checkmate()


def test_an_opening_has_even_material_and_its_legal_moves_on_demand():
    task, _ = game.positions("opening", True, 2, 1)
    side = task["fen"].split()[0]
    black = {"P": "p", "R": "r", "Q": "q"}
    assert all(side.count(white) == side.count(other) for white, other in black.items())
    assert "Legal moves: " in task["question"]


@pytest.mark.parametrize(
    ("fen", "moves", "score"),
    [
        (BACK_RANK, ["Ra8"], 1.0),
        ("7k/5K2/8/8/8/8/8/6Q1 w - - 0 1", ["Qg6"], 0.5),  # stalemate
        ("7k/8/8/8/8/8/5PPP/r5K1 w - - 0 1", [], 0.0),  # mated already: any move is illegal
        ("6k1/5ppp/8/8/8/8/r7/6K1 w - - 0 1", ["h8"], 0.0),
        (
            "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1",
            ["e3", "e4"],
            0.5,
        ),  # cut, and all material is mine
        ("4k3/4p3/8/8/8/8/4P3/4K3 w - - 0 1", ["Kd1", "Ke1"], 0.25),
    ],
)
async def test_a_game_is_scored_by_its_result_or_by_the_material_when_it_is_cut(
    fen, moves, score
):
    reward, _ = await played(fen, *moves, start="opening", max_turns=2)
    assert reward.score == score


async def test_the_model_reads_the_opponents_move_and_the_new_position():
    _, model = await played(
        "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "e3", "e4", start="opening", max_turns=2
    )
    told = model.replies[1].messages[-2]["content"]
    assert told.startswith("I play K") and "4P3" in told and "White to move" in told


def test_the_search_takes_what_hangs_and_mates_where_it_can():
    import chess

    rng = random.Random(1)
    hanging = chess.Board("4k3/8/8/3q4/8/8/8/3RK3 w - - 0 1")
    assert game.search_move(hanging, 2, rng).uci() == "d1d5"
    assert game.search_move(chess.Board(BACK_RANK), 3, rng).uci() == "a1a8"
    guarded = chess.Board("4k3/8/2p5/3p4/8/8/8/3QK3 w - - 0 1")
    assert game.search_move(guarded, 2, rng).uci() != "d1d5"
    assert game.search_move(guarded, 0, rng) in guarded.legal_moves


@pytest.mark.skipif(STOCKFISH is None, reason="Stockfish is not installed")
async def test_stockfish_answers_and_its_process_ends():
    reward, model = await played(
        "4k3/4p3/8/8/8/8/4P3/4K3 w - - 0 1",
        *("e3", "e4"),
        start="opening",
        max_turns=2,
        opponent="stockfish",
    )
    assert reward.metrics["material"] == 0.5
    assert "I play " in model.replies[1].messages[-2]["content"]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def test_a_stockfish_that_ends_at_once_is_an_error_and_no_score(tmp_path, monkeypatch):
    from chess.engine import EngineError

    program = tmp_path / "stockfish"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError):
        await played(BACK_RANK, "Ra7", start="opening", opponent="stockfish")


def test_an_opponent_that_cannot_play_is_refused_with_the_reason(monkeypatch):
    config = game.chess_game.env_config_cls
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="stockfish: no such program"):
        game.tasks(config(opponent="stockfish"))
    with pytest.raises(ConfigError, match="search takes at most 3"):
        game.tasks(config(depth=4))


@pytest.mark.slow
async def test_a_tiny_model_plays_a_group(sampled):
    short = {"tasks": 4, "start": "opening", "max_tokens": 16}
    group, *_ = await sampled(game.chess_game, **short)
    assert all(0 <= score <= 1 for score in group["scores"])
