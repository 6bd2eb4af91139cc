"""Multiple choice about characters, HTML and HTTP: facts of the Python standard library.

python environments/library/multiple_choice.py serve
"""

import unicodedata
from functools import cache
from html.entities import html5
from http import HTTPStatus

from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, tasks_of
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

LETTERS = "ABCD"
BLOCKS = (
    range(0x391, 0x3CA),
    range(0x410, 0x450),
    range(0x2190, 0x21B0),
    range(0x2200, 0x2240),
)


@cache
def facts():
    """Lists of (question, answer): wrong options come from the same list."""
    characters = [
        chr(code) for block in BLOCKS for code in block if unicodedata.name(chr(code), "")
    ]
    entities = {
        f"&{name}": text
        for name, text in html5.items()
        if name.endswith(";") and len(text) == 1
    }
    return [
        [
            (f"Which character is {unicodedata.name(character)}?", character)
            for character in characters
        ],
        [
            (f"Which character does HTML write as {name}?", character)
            for name, character in entities.items()
            if character.isprintable() and not character.isspace()
        ],
        [
            (f"Which code of HTTP means {code.phrase!r}?", str(code.value))
            for code in HTTPStatus
        ],
    ]


def make(rng):
    pool = rng.choice(facts())
    question, right = rng.choice(pool)
    wrong_answers = sorted({answer for _, answer in pool} - {right})
    options = [right, *rng.sample(wrong_answers, len(LETTERS) - 1)]
    rng.shuffle(options)
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options))
    return {
        "question": f"{question}\n\n{listed}\n\nAnswer with the letter. {TAGS}",
        "answer": LETTERS[options.index(right)],
    }


CARD = Card(
    "multiple choice",
    data="names of Unicode, entities of HTML and codes of HTTP in the Python standard library",
    licence="PSF-2.0, Unicode-3.0",
    gold=lambda task: f"<answer>{task['answer']}</answer>",
)


@environment(tasks_of(make), settings=SETTINGS, card=CARD, group_size=8, max_tokens=256)
async def multiple_choice(task, model):
    return answer_in(await model.chat(task["question"])) == task["answer"]


if __name__ == "__main__":
    multiple_choice.cli()
