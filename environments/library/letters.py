"""Letters: how often a letter occurs in a phrase, and phrases backwards.

    python environments/library/letters.py serve

Easier, for example for a small model: ``--env.words 1 --env.apart true --env.steps true``;
for a model of characters: ``--env.words 1 --env.backwards 0 --env.bare true``. Without
``--env.backwards 0`` half of the tasks turn words round, which is much harder.
"""

from collections import Counter
from functools import partial
from string import ascii_lowercase

from pydantic import Field

from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, distinct, words
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card


def make(rng, config):
    phrase = " ".join(rng.sample(words(), rng.randint(1, config.words)))
    shown = " ".join(phrase) if config.apart else phrase
    tail = f"{STEPS} {TAGS}" if config.steps else TAGS
    if rng.random() < 1 - config.backwards:
        counts = Counter(phrase.replace(" ", ""))
        # Each count is as likely: most letters occur once, and "1" must not be a good answer.
        wanted = rng.choice(sorted({0, *counts.values()}))
        letter = rng.choice(
            [candidate for candidate in ascii_lowercase if counts[candidate] == wanted]
        )
        question = f"How many times does the letter {letter!r} occur in {shown!r}? {tail}"
        bare = f"{letter}: {shown}"
        apart = enumerate(phrase, 1)
        steps = [
            f"{character} {phrase[:i].count(letter)}"
            for i, character in apart
            if character != " "
        ]
        answer = {"answer": str(counts[letter]), "steps": ", ".join(steps)}
        return {"question": bare if config.bare else question, **answer}
    question = f"Write {shown!r} backwards, letter by letter. {tail}"
    if config.bare:
        question = f"backwards: {shown}"
    return {"question": question, "answer": phrase[::-1], "steps": " ".join(phrase[::-1])}


def gold(task):
    """The answer, after the steps if the question asks for them."""
    if TAGS not in task["question"]:
        return task["answer"]
    steps = f"{task['steps']} " if STEPS in task["question"] else ""
    return f"{steps}<answer>{task['answer']}</answer>"


def tasks(config):
    return distinct(partial(make, config=config), config.tasks, config.seed)


STEPS = "First go through it, one letter after the other."
LEVEL = {
    "words": Field(default=3, ge=1, le=9, description="most words of a phrase"),
    "backwards": Field(default=0.5, ge=0, le=1, description="share of phrases to turn round"),
    "bare": Field(
        default=False,
        description="no sentence and no tags: 'r: retry' is 2, 'backwards: pool' is loop",
    ),
    "apart": Field(default=False, description="show a space between the letters"),
    "steps": Field(default=False, description="ask for steps, which gold replies then have"),
}
CARD = Card(
    "text",
    data="made on the spot from words of the Python documentation",
    licence="PSF-2.0",
    gold=gold,
)


@environment(tasks, settings=SETTINGS | LEVEL, card=CARD, group_size=8, max_tokens=256)
async def letters(task, model):
    reply = await model.chat(task["question"])
    return (answer_in(reply) if TAGS in task["question"] else reply) == task["answer"]


if __name__ == "__main__":
    letters.cli()
