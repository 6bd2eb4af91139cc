"""Word hunt: find hidden words in a square of letters, and give place and direction of each.

python environments/library/word_hunt.py serve --env.size 9
"""

import re

from pydantic import Field

from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, distinct, words
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

STEPS = {"right": (0, 1), "down": (1, 0), "diagonal": (1, 1)}
LINE = re.compile(r"(\w+): *(\d+), *(\d+), *(\w+)")
RULES = """\
Find these words in the square: {words}.
A word runs right, down, or diagonal (down and right at once). {tags} One line for each word, with
the row and the column of its first letter, counted from 1, and the direction, such as
cat: 2, 5, down

{square}"""


def cells(word, row, column, direction):
    down, right = STEPS[direction]
    return [(row + i * down, column + i * right) for i in range(len(word))]


def hide_words(rng, size, count):
    """A square as {(row, column): letter}, and the hidden words with their places."""
    square, places = {}, {}
    fitting = [word for word in words() if len(word) <= size]
    for word in rng.sample(fitting, count):
        for _ in range(100):
            row, column = rng.randint(1, size), rng.randint(1, size)
            direction = rng.choice(list(STEPS))
            used = cells(word, row, column, direction)
            free = all(square.get(at, a) == a for at, a in zip(used, word))
            if free and max(used[-1]) <= size:
                square |= zip(used, word)
                places[word] = row, column, direction
                break
    every = [(row, column) for row in range(1, size + 1) for column in range(1, size + 1)]
    return {at: square.get(at) or chr(97 + rng.randrange(26)) for at in every}, places


def tasks(config):
    def make(rng):
        square, places = hide_words(rng, config.size, config.words)
        if len(places) < config.words:
            return None
        lines = ["".join(square[r, c] for c in side) for r in side]
        shown = RULES.format(words=", ".join(places), tags=TAGS, square="\n".join(lines))
        return {"question": shown, "lines": lines, "places": places}

    side = range(1, config.size + 1)
    return distinct(make, config.tasks, config.seed)


def share_found(task, answer):
    """Share of the words at whose place the square has their letters; 0 for a word named twice."""
    named = LINE.findall(answer_in(answer) or "")
    if len({word for word, *_ in named}) < len(named) or len(named) > len(task["places"]):
        return 0.0
    square = {
        (r, c): a for r, line in enumerate(task["lines"], 1) for c, a in enumerate(line, 1)
    }
    return sum(
        [square.get(at) for at in cells(word, int(row), int(column), way)] == list(word)
        for word, row, column, way in named
        if word in task["places"] and way in STEPS
    ) / len(task["places"])


def gold(task):
    lines = [f"{word}: {r}, {c}, {way}" for word, (r, c, way) in task["places"].items()]
    return "<answer>" + "\n".join(lines) + "</answer>"


SIZES = {
    "size": Field(default=7, ge=4, le=20, description="letters in a row"),
    "words": Field(default=3, ge=1, le=12, description="hidden words"),
}
CARD = Card(
    "puzzles",
    data="made on the spot from words of the Python documentation",
    licence="PSF-2.0",
    gold=gold,
)


@environment(
    tasks,
    rewards=share_found,
    settings=SETTINGS | SIZES,
    card=CARD,
    group_size=8,
    max_tokens=512,
)
async def word_hunt(task, model):
    return await model.chat(task["question"])


if __name__ == "__main__":
    word_hunt.cli()
