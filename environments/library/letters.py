"""Letters: how often one occurs in a phrase, and phrases backwards.

python environments/library/letters.py serve
"""

from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, tasks_of, words
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card


def make(rng):
    phrase = " ".join(rng.sample(words(), rng.randint(1, 3)))
    if rng.random() < 0.5:
        letter = rng.choice(phrase.replace(" ", ""))
        question = f"How many times does the letter {letter!r} occur in {phrase!r}?"
        return {"question": f"{question} {TAGS}", "answer": str(phrase.count(letter))}
    question = f"Write {phrase!r} backwards, letter by letter. {TAGS}"
    return {"question": question, "answer": phrase[::-1]}


CARD = Card(
    "text",
    data="made on the spot from words of the Python documentation",
    licence="PSF-2.0",
    gold=lambda task: f"<answer>{task['answer']}</answer>",
)


@environment(tasks_of(make), settings=SETTINGS, card=CARD, group_size=8, max_tokens=256)
async def letters(task, model):
    return answer_in(await model.chat(task["question"])) == task["answer"]


if __name__ == "__main__":
    letters.cli()
