"""Tic-tac-toe from positions that can be won, against an engine that searches the whole game.

    python environments/library/tic_tac_toe.py serve

For a model of characters, without English: ``--env.bare true``. Against itself:
``--env.opponent pool --env.eval_opponent random``, from openings in place of won positions.
"""

import random
from functools import cache
from typing import Literal

from pydantic import Field

from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
RULES = """\
Tic-tac-toe. You are {me}, and it is your turn. The free cells are numbered. Reply with the number
of a free cell and nothing else.

{board}"""


def won(board, player):
    return any(all(board[int(cell)] == player for cell in line) for line in LINES)


def free(board):
    return [cell for cell, owner in enumerate(board) if owner == " "]


def place_mark(board, cell, player):
    return board[:cell] + player + board[cell + 1 :]


def other(player):
    return "O" if player == "X" else "X"


@cache
def value(board, player):
    """Outcome for ``player``, who is to move: above 0 won, the sooner the higher; below 0 lost."""
    if won(board, other(player)):
        return -1 - len(free(board))
    if not free(board):
        return 0
    return max(-value(place_mark(board, cell, player), other(player)) for cell in free(board))


def best(board, player):
    return max(
        free(board), key=lambda c: (-value(place_mark(board, c, player), other(player)), -c)
    )


def positions():
    """Positions after two to four moves that the player to move wins, not at once."""
    level, boards = {" " * 9}, {}
    for ply in range(5):
        player = "XO"[ply % 2]
        for board in sorted(level) if ply >= 2 else ():
            at_once = any(won(place_mark(board, cell, player), player) for cell in free(board))
            if value(board, player) > 0 and not at_once:
                name = board.replace(" ", ".")
                boards[name] = {"id": name, "board": board, "me": player}
        level = {
            place_mark(b, c, player)
            for b in level
            for c in free(b)
            if not won(b, other(player))
        }
    return list(boards.values())


def openings():
    """Positions after no to three moves, none of which is won."""
    level, boards = {" " * 9}, []
    for ply in range(4):
        player = "XO"[ply % 2]
        boards += [
            {"id": board.replace(" ", "."), "board": board, "me": player}
            for board in sorted(level)
        ]
        level = {place_mark(board, c, player) for board in level for c in free(board)}
    return boards


def tasks(config):
    return positions() if config.opponent == "engine" else openings()


def board_text(board):
    rows = [board[i : i + 3] for i in (0, 3, 6)]
    numbered = [
        [a if a != " " else str(3 * r + c + 1) for c, a in enumerate(row)]
        for r, row in enumerate(rows)
    ]
    return "\n".join(" ".join(row) for row in numbered)


def gold(task):
    """The shortest way to win, move by move."""
    board, me, moves = task["board"], task["me"], []
    while True:
        cell = best(board, me)
        moves.append(str(cell + 1))
        board = place_mark(board, cell, me)
        if won(board, me):
            return moves
        board = place_mark(board, best(board, other(me)), other(me))


CARD = Card("games", data="made on the spot", licence="MIT", gold=gold, turns="2-4")


Opponent = Literal["engine", "random", "present", "pool"]
AGAINST = "engine, random, present (the trained model itself) or pool (its earlier versions)"
SETTINGS = {
    "bare": Field(default=False, description="no rules: x or o to move, and the board"),
    "history": Field(
        default=True, description="a turn follows the turns before; false: it stands alone"
    ),
    "opponent": (Opponent, Field(default="engine", description=AGAINST)),
    "eval_opponent": (
        Opponent | None,
        Field(default=None, description="of held-out games (default: as opponent)"),
    ),
}


class Player:
    """The opponent of a game; an illegal move of a model is replaced by a random move."""

    def __init__(self, task, model, config):
        kind = config.opponent if model.split == "train" else config.eval_opponent
        self.kind, self.config, self.model = kind or config.opponent, config, model
        self.messages, self.illegal = [], 0
        self.random = random.Random(f"{config.seed}/{task['id']}")

    async def move(self, board, player):
        if self.kind == "engine":
            return best(board, player)
        cell = None
        if self.kind != "random":
            version = "pool" if self.kind == "pool" else None
            seat = await self.model.endpoint("opponent", trainable=False, version=version)
            first = not self.messages
            asked = {
                "role": "user",
                "content": question(board, player, self.config.bare, first),
            }
            reply = await seat.chat([*self.messages, asked])
            if self.config.history:
                self.messages += [asked, {"role": "assistant", "content": reply}]
            cell = cell_of(reply, board)
            self.illegal += cell is None
        return self.random.choice(free(board)) if cell is None else cell


def question(board, player, bare, first):
    """The text of a turn: the rules at first, then the board."""
    if bare:
        return f"{player}\n{board_text(board)}".lower() if first else board_text(board).lower()
    return RULES.format(me=player, board=board_text(board)) if first else board_text(board)


def cell_of(reply, board):
    """The free cell that a reply names; None: it is no legal move."""
    cell = int(reply) - 1 if reply.strip() in list("123456789") else -1
    return cell if cell in free(board) else None


@environment(
    tasks,
    settings=SETTINGS,
    rewards={"won": 1.0, "drawn": 0.0, "illegal": 0.0},
    card=CARD,
    group_size=8,
    max_tokens=8,
)
async def tic_tac_toe(task, model, config):
    board, me = task["board"], task["me"]
    ended = {"won": 0.0, "drawn": 0.0, "illegal": 0.0}
    opponent = Player(task, model, config)
    if config.opponent != "engine":
        model.role = me
    messages = [{"role": "user", "content": question(board, me, config.bare, True)}]
    while True:
        reply = await model.chat(messages)
        cell = cell_of(reply, board)
        if cell is None:
            return ended | {"illegal": 1.0}
        board = place_mark(board, cell, me)
        if won(board, me):
            return ended | {"won": 1.0}
        if not free(board):
            return ended | {"drawn": 1.0}
        board = place_mark(board, await opponent.move(board, other(me)), other(me))
        if won(board, other(me)):
            return ended
        if not free(board):
            return ended | {"drawn": 1.0}
        then = question(board, me, config.bare, not config.history)
        earlier = reply.messages if config.history else []
        messages = [*earlier, {"role": "user", "content": then}]


if __name__ == "__main__":
    tic_tac_toe.cli()
