"""Random legal moves of tic-tac-toe as messages: a model learns the rules before it is rewarded.

python docs/examples/legal_games.py 12000 > moves.jsonl
atropos train sft --model MODEL --train-file moves.jsonl --save-path runs/rules
"""

import json
import random
import sys

from environments.library.tic_tac_toe import free, openings, other, place_mark, question, won


def legal_moves(task, choices):
    """A line of messages for each turn of a random game."""
    board, player = task["board"], task["me"]
    while free(board) and not won(board, other(player)):
        cell = choices.choice(free(board))
        yield [
            {"role": "user", "content": question(board, player, True, True)},
            {"role": "assistant", "content": str(cell + 1)},
        ]
        board, player = place_mark(board, cell, player), other(player)


if __name__ == "__main__":
    choices, tasks = random.Random(0), openings()
    for _ in range(int(sys.argv[1])):
        for messages in legal_moves(choices.choice(tasks), choices):
            print(json.dumps({"messages": messages}))
