"""Games of tic-tac-toe with random legal moves as messages: a model learns the rules before RL.

python docs/examples/legal_games.py 20000 > games.jsonl
atropos train sft --model MODEL --train-file games.jsonl --save-path runs/rules
"""

import json
import random
import sys

from environments.library.tic_tac_toe import free, openings, other, place_mark, question, won


def legal_game(task, moves):
    """Messages of the player of ``task``; both sides move at random."""
    board, me, messages = task["board"], task["me"], []
    while free(board) and not won(board, me) and not won(board, other(me)):
        asked = question(board, me, True, not messages)
        cell = moves.choice(free(board))
        messages += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": str(cell + 1)},
        ]
        board = place_mark(board, cell, me)
        if free(board) and not won(board, me):
            board = place_mark(board, moves.choice(free(board)), other(me))
    return messages


if __name__ == "__main__":
    moves, tasks = random.Random(0), openings()
    for _ in range(int(sys.argv[1])):
        print(json.dumps({"messages": legal_game(moves.choice(tasks), moves)}))
