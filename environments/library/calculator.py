"""Calculator: word problems with large numbers, and a calculator between the model's sentences.

    python environments/library/calculator.py serve

The model writes <calc>17 * 23</calc>, is given the result, and goes on. The score is 1 for the
right number. Easier, for example for a small model: ``--env.stories false``.
"""

from functools import partial

from pydantic import Field

from atroposlib.environments.common.calculation import calculate_text
from atroposlib.environments.common.generated import SETTINGS, TAGS, answer_in, distinct
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

MAX_TURNS = 6
HOW = f"You may calculate: write <calc>17 * 23</calc> and wait for the result. {TAGS}"


def make(rng, stories):
    boxes, each, price, paid = (rng.randint(120, 990) for _ in range(4))
    shops = rng.randint(1000, 9999)
    question, expression = rng.choice(
        [
            (
                f"A store gets {boxes} boxes of {each} screws and sells {paid}. The rest is "
                f"shared equally by {shops} shops. How many screws are left over?",
                f"({boxes} * {each} - {paid}) % {shops}",
            ),
            (
                f"{shops} people pay {price} cents each, and {each} of them pay {paid} cents "
                f"more. How many cents is that?",
                f"{shops} * {price} + {each} * {paid}",
            ),
            (
                f"A press prints {each} pages a minute for {boxes} minutes. Books have {paid} "
                f"pages. How many whole books is that?",
                f"{each} * {boxes} // {paid}",
            ),
        ]
    )
    if not stories:
        expression = f"{boxes * rng.randint(2, 9)} {rng.choice('+-*')} {each}"
        question = f"What is {expression}?"
    answer = calculate_text(expression)
    return {"question": f"{question} {HOW}", "expression": expression, "answer": answer}


def tasks(config):
    return distinct(partial(make, stories=config.stories), config.tasks, config.seed)


STORIES = {"stories": Field(default=True, description="in words; else one operation, as such")}
CARD = Card(
    "mathematics",
    data="made on the spot",
    licence="MIT",
    gold=lambda task: [
        f"That is <calc>{task['expression']}</calc>",
        f"<answer>{task['answer']}</answer>",
    ],
    turns="1-6",
)


@environment(tasks, settings=SETTINGS | STORIES, card=CARD, group_size=8, max_tokens=128)
async def calculator(task, model):
    reply = await model.chat(task["question"], stop=["</calc>"])
    for _ in range(MAX_TURNS - 1):
        _, tag, expression = reply.rpartition("<calc>")
        if not tag or "<answer>" in expression:
            break
        result = {
            "role": "user",
            "content": calculate_text(expression.removesuffix("</calc>")),
        }
        reply = await model.chat([*reply.messages, result], stop=["</calc>"])
    return answer_in(reply) == task["answer"]


if __name__ == "__main__":
    calculator.cli()
