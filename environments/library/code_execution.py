"""Code execution: functions written from a description, run in a sandbox on hidden inputs.

    python environments/library/code_execution.py serve

The expected results never enter the sandbox (docs/cookbook.md): the return value of the
function is compared outside. The score is 1 if all results are right. Needs bubblewrap.
"""

import json

from atroposlib.environments.common.generated import SETTINGS, code_block, code_in, distinct
from atroposlib.envs import environment, sandbox
from atroposlib.envs.function_env.card import Card

# Description of a step, and its Python; {k} is a small number.
STEPS = (
    ("keep the numbers that are divisible by {k}", "[x for x in xs if x % {k} == 0]"),
    ("remove the numbers that are divisible by {k}", "[x for x in xs if x % {k}]"),
    ("keep the numbers greater than {k}", "[x for x in xs if x > {k}]"),
    ("multiply every number by {k}", "[x * {k} for x in xs]"),
    ("subtract {k} from every number", "[x - {k} for x in xs]"),
    ("square every number", "[x * x for x in xs]"),
    ("replace every number by its remainder after division by {k}", "[x % {k} for x in xs]"),
    ("reverse the list", "xs[::-1]"),
    ("sort the list in ascending order", "sorted(xs)"),
    ("sort the list in descending order", "sorted(xs, reverse=True)"),
    ("keep only the first occurrence of every number", "list(dict.fromkeys(xs))"),
    ("keep the first {k} numbers", "xs[:{k}]"),
    ("remove the first {k} numbers", "xs[{k}:]"),
    ("keep the numbers at even positions, counted from 0", "xs[::2]"),
    ("replace the list by its running sums", "[sum(xs[: i + 1]) for i in range(len(xs))]"),
    (
        "replace the list by the differences of neighbours, the later minus the earlier",
        "[b - a for a, b in zip(xs, xs[1:])]",
    ),
)
RULES = """\
Write a Python function solve(xs). It takes a list of whole numbers, does these steps in order,
and returns the resulting list:
{steps}
Reply with one block of code that defines solve."""
HIDDEN = 12  # inputs


def apply_steps(steps, xs):
    for step in steps:
        xs = eval(step, {"xs": xs})
    return xs


def make(rng):
    chosen = [(text, code, rng.randint(2, 7)) for text, code in rng.sample(STEPS, 3)]
    steps = [code.format(k=k) for _, code, k in chosen]
    inputs = [[rng.randint(-20, 20) for _ in range(rng.randint(4, 12))] for _ in range(HIDDEN)]
    expected = [apply_steps(steps, xs) for xs in inputs]
    fewer = [[apply_steps(steps[:i] + steps[i + 1 :], xs) for xs in inputs] for i in range(3)]
    if expected in fewer or sum(map(bool, expected)) < HIDDEN // 2:
        return None  # a step that changes nothing, or mostly empty lists
    listed = "\n".join(f"{i}. {text.format(k=k)}" for i, (text, _, k) in enumerate(chosen, 1))
    return {
        "question": RULES.format(steps=listed),
        "inputs": inputs,
        "expected": [json.dumps(value) for value in expected],
        "solution": "".join(f"    xs = {step}\n" for step in steps),
    }


async def tasks(config):
    await sandbox.ready(config.sandbox)
    return distinct(make, config.tasks, config.seed)


def gold(task):
    return code_block(f"def solve(xs):\n{task['solution']}    return xs", "python")


CARD = Card("code", data="made on the spot", licence="MIT", gold=gold, extras="bubblewrap")


@environment(
    tasks,
    rewards={"right": 1.0, "share": 0.0, "finished": 0.0},
    settings=SETTINGS | sandbox.SETTINGS,
    card=CARD,
    group_size=8,
)
async def code_execution(task, model, config):
    program = code_in(await model.chat(task["question"]), "python")
    if program is None:
        return {"right": 0.0, "share": 0.0, "finished": 0.0}
    calls = [[xs] for xs in task["inputs"]]
    results, ran = await sandbox.results_of(program, "solve", calls, kind=config.sandbox)
    same = [a == b for a, b in zip(results, task["expected"])]
    return {
        "right": results == task["expected"],
        "share": sum(same) / HIDDEN,
        "finished": ran.ended is sandbox.Ended.FINISHED,
    }


if __name__ == "__main__":
    code_execution.cli()
