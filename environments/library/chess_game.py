"""Chess: mates in one, or games against an engine, from positions of random play.

    python environments/library/chess_game.py process
    python environments/library/chess_game.py serve --env.start opening --env.opponent stockfish

A mate in one is a single move, and the score is 1 if it mates. A game from an opening scores 1
if it is won, 0.5 if it is drawn, and half the model's share of the material if it is cut after
max_turns moves. The opponent is a search of this file, or the program Stockfish. Needs the
package chess: pip install 'atropos-rl[chess]'.
"""

import asyncio
import random
import shutil
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Literal

from pydantic import Field

from atroposlib.adapters import import_package
from atroposlib.adapters.turns import Turns, require_turn
from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, distinct
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card
from atroposlib.errors import ConfigError

RULES = {
    "mate": "Chess. You are {me}, and one move mates. Find it.",
    "opening": "Chess. You are {me}, and it is your turn. Win.",
}
HOW = "Give a move as in Nf3 or g1f3. " + TAGS
VALUES = {"P": 1, "N": 3, "B": 3, "R": 5, "Q": 9}
MATE, MAX_DEPTH = 1000, 3  # constants of the search of this file
MAX_PLIES, WAIT_S = 120, 60.0  # limits of random play and of Stockfish


def legal_move(board, reply):
    """The move in the tags of a reply; None without a legal move."""
    try:
        move = board.parse_san(answer_in(reply) or "")
    except ValueError:
        return None
    return move if move in board.legal_moves else None


def mates(board):

    def mate(move):
        board.push(move)
        checkmate = board.is_checkmate()
        board.pop()
        return checkmate

    return [m for m in board.legal_moves if board.gives_check(m) and mate(m)]


def material(board, colour):
    pieces = (p for p in board.piece_map().values() if p.color == colour)
    return sum(VALUES.get(p.symbol().upper(), 0) for p in pieces)


# --- the tasks ----------------------------------------------------------------------------


def board_text(board, list_moves):
    """Position as text, lower-case pieces are black; the moves are sorted."""
    to_move = "White" if board.turn else "Black"
    lines = [f"{8 - i} {row}" for i, row in enumerate(str(board).splitlines())]
    lines += ["  a b c d e f g h", f"FEN: {board.fen()}", f"{to_move} to move."]
    moves = ", ".join(sorted(move.uci() for move in board.legal_moves))
    return "\n".join(lines + [f"Legal moves: {moves}"] * list_moves)


def make(rng, start, list_moves):
    chess, _ = import_package("chess", "chess")
    board, gold = chess.Board(), ""
    for _ in range(MAX_PLIES if start == "mate" else rng.randint(2, 8)):
        if start == "mate" and (mating_moves := mates(board)):
            gold = board.san(mating_moves[0])
            break
        moves = list(board.legal_moves)
        if not moves:
            return None
        board.push(rng.choice(moves))
    even = material(board, True) == material(board, False)
    if board.is_game_over() or not (gold if start == "mate" else even):
        return None
    rules = RULES[start].format(me="White" if board.turn else "Black")
    question = f"{rules}\n\n{board_text(board, list_moves)}\n\n{HOW}"
    return {"question": question, "fen": board.fen(), "gold": gold}


@cache
def positions(start, list_moves, count, seed):
    return distinct(partial(make, start=start, list_moves=list_moves), count, seed)


def tasks(config):
    if config.opponent == "stockfish" and shutil.which("stockfish") is None:
        raise ConfigError("--env.opponent stockfish: no such program on the PATH; install it")
    if config.opponent == "search" and config.depth > MAX_DEPTH:
        raise ConfigError(f"--env.depth {config.depth}: search takes at most {MAX_DEPTH}")
    return positions(config.start, config.list_moves, config.tasks, config.seed)


# --- the opponent -------------------------------------------------------------------------


def value(board, depth, low=-2 * MATE, high=2 * MATE):
    """Material ahead of the player to move after ``depth`` best half-moves; mates count most."""
    moves = list(board.legal_moves)
    if not moves:
        return -MATE - depth if board.is_check() else 0
    if not depth:
        return material(board, board.turn) - material(board, not board.turn)
    for move in moves:
        board.push(move)
        low = max(low, -value(board, depth - 1, -high, -low))
        board.pop()
        if low >= high:
            break
    return low


def search_move(board, depth, rng):
    """A best move of a search; with depth 0 any move."""

    def worth(move):
        board.push(move)
        score = -value(board, depth - 1) if depth else 0
        board.pop()
        return score, rng.random()

    return max(board.legal_moves, key=worth)


@asynccontextmanager
async def opponent(task, config):
    """Function (board) -> move. Raises chess.engine.EngineError, TimeoutError: Stockfish failed."""
    if config.opponent == "search":
        rng = random.Random(task["fen"])
        yield lambda board: asyncio.to_thread(search_move, board.copy(), config.depth, rng)
        return
    from chess import engine

    transport, stockfish = await asyncio.wait_for(engine.popen_uci("stockfish"), WAIT_S)
    try:
        options = {"Threads": 1, "Hash": 16, "Skill Level": config.skill}
        await asyncio.wait_for(stockfish.configure(options), WAIT_S)
        limit = engine.Limit(depth=max(1, config.depth), time=WAIT_S / 2)

        async def move(board):
            return (await asyncio.wait_for(stockfish.play(board, limit), WAIT_S)).move

        yield move
    finally:
        transport.close()  # kills it
        await asyncio.wait_for(asyncio.shield(stockfish.returncode), WAIT_S)


# --- the rollout --------------------------------------------------------------------------


async def game(task, model, config, board, answer):
    """Play until the end, an illegal move, or a limit; returns the rewards of it."""
    me, text, turns = board.turn, task["question"], Turns(model, config)
    while (reply := await turns.ask(text)) is not None:
        move = legal_move(board, reply)
        if move is None:
            return {"illegal": 1.0}
        board.push(move)
        if not board.outcome(claim_draw=True):
            move = await answer(board)
            note = f"I play {board.san(move)}.\n\n"
            board.push(move)
        if outcome := board.outcome(claim_draw=True):
            return {"won": outcome.winner is me, "drawn": outcome.winner is None}
        text = note + board_text(board, config.list_moves)
    require_turn(turns.taken, config)
    mine, theirs = material(board, me), material(board, not me)
    return {"material": mine / max(1, mine + theirs)}


SETTINGS_OF_CHESS = {
    "start": (
        Literal["mate", "opening"],
        Field(default="mate", description="mate in one, or a whole game"),
    ),
    "list_moves": Field(default=False, description="show the legal moves"),
    "opponent": (
        Literal["search", "stockfish"],
        Field(default="search", description="of a game; stockfish is a program on the PATH"),
    ),
    "depth": Field(
        default=2, ge=0, le=20, description="half-moves that the opponent searches"
    ),
    "skill": Field(default=0, ge=0, le=20, description="Skill Level of Stockfish"),
    "max_turns": Field(default=40, ge=1, description="most moves of the model in a game"),
}
CARD = Card(
    "games",
    data="made on the spot by random play",
    licence="MIT",
    gold=lambda task: f"<answer>{task['gold']}</answer>",
    turns="1, or 1-40",
    extras="atropos-rl[chess] (GPL-3), Stockfish (GPL-3) where it plays",
)


@environment(
    tasks,
    rewards={"won": 1.0, "drawn": 0.5, "material": 0.5, "illegal": 0.0},
    settings=SETTINGS | SETTINGS_OF_CHESS,
    card=CARD,
    group_size=8,
    max_tokens=256,
    max_token_length=16384,
)
async def chess_game(task, model, config):
    chess, _ = import_package("chess", "chess")
    board = chess.Board(task["fen"])
    ended = {"won": 0.0, "drawn": 0.0, "material": 0.0, "illegal": 0.0}
    if config.start == "mate":
        move = legal_move(board, await model.chat(task["question"]))
        return ended | {"won": move in mates(board), "illegal": move is None}
    async with opponent(task, config) as answer:
        return ended | await game(task, model, config, board, answer)


if __name__ == "__main__":
    chess_game.cli()
