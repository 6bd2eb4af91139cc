"""Roman numerals: numbers written in them, and read from them.

    python environments/community/roman_numerals/roman_numerals.py serve

Easier, for example for a small model: ``--env.largest 20``.
"""

from functools import partial

from pydantic import Field

from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, distinct
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

VALUES = {
    "M": 1000,
    "CM": 900,
    "D": 500,
    "CD": 400,
    "C": 100,
    "XC": 90,
    "L": 50,
    "XL": 40,
    "X": 10,
    "IX": 9,
    "V": 5,
    "IV": 4,
    "I": 1,
}


def numeral_of(number):
    """The numeral of a number from 1 to 3999: 1994 -> MCMXCIV."""
    numeral = ""
    for letters, value in VALUES.items():
        count, number = divmod(number, value)
        numeral += count * letters
    return numeral


def make(rng, largest):
    number = rng.randint(1, largest)
    numeral = numeral_of(number)
    if rng.random() < 0.5:
        question = f"Write {number} in Roman numerals. {TAGS}"
        return {"question": question, "answer": numeral}
    return {"question": f"Which number is {numeral}? {TAGS}", "answer": str(number)}


def tasks(config):
    return distinct(partial(make, largest=config.largest), config.tasks, config.seed)


LARGEST = {
    "largest": Field(default=3999, ge=20, le=3999, description="largest number asked for")
}
CARD = Card(
    "reading and writing",
    data="made on the spot",
    licence="MIT",
    gold=lambda task: f"<answer>{task['answer']}</answer>",
    wrong=lambda task: [task["answer"], f"<answer>{task['answer']}I</answer>"],
)


@environment(tasks, settings=SETTINGS | LARGEST, card=CARD, group_size=8, max_tokens=64)
async def roman_numerals(task, model):
    return answer_in(await model.chat(task["question"])) == task["answer"]


if __name__ == "__main__":
    roman_numerals.cli()
