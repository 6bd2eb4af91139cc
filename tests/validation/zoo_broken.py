"""Environments with one defect each, and the check that has to find it."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
import re
import subprocess
import tempfile
import threading
import time

from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

FINDS: dict[str, str] = {}
KEPT: list = []
TASKS = [
    {
        "id": f"t{i}",
        "question": f"What is {i} times {i + 3}, plus 1000?",
        "answer": f"{answer}",
    }
    for i, answer in ((i, 1000 + i * (i + 3)) for i in range(3, 43))
]
YES = [{**one, "answer": "yes" if i % 10 else "no"} for i, one in enumerate(TASKS)]


def gold(task):
    return f"<answer>{task['answer']}</answer>"


def answer_in(reply):
    found = re.findall(r"<answer>([^<]*)</answer>", reply)
    return found[-1].strip() if len(found) == 1 else None


def right(task, reply):
    return float(answer_in(reply) == task["answer"])


async def ask(task, model):
    return await model.chat(task["question"] + " Put the number in answer tags.")


def broken(check, tasks=TASKS, *, gold=gold, wrong=None, best=1.0, **options):
    def made(function):
        FINDS[function.__name__] = check
        card = Card("broken", "made here", "MIT", gold, wrong=wrong, best=best)
        return environment(tasks, card=card, **options)(function)

    return made


def raw(task):
    return task["answer"]


# --- what gets a score ---


@broken("many.fails", gold=raw)
async def substring_match(task, model):
    return float(task["answer"] in await ask(task, model))


@broken("null.fails")
async def empty_is_right(task, model):
    reply = await ask(task, model)
    return float(reply.strip() == "" or right(task, reply))


@broken("null.fails")
async def starts_as_the_answer_does(task, model):
    return float(gold(task).startswith((await ask(task, model)).strip()))


@broken("echo.fails")
async def options_in_the_prompt(task, model):
    others = ", ".join(str(int(task["answer"]) + n) for n in (7, 0, 12))
    reply = await model.chat(f"{task['question']} One of {others}.")
    return float(task["answer"] in re.findall(r"\d+", reply)[:9])


@broken("echo.fails")
async def example_is_accepted(task, model):
    reply = await model.chat(f"{task['question']} Answer as in <answer>number</answer>.")
    return float(answer_in(reply) in ("number", task["answer"]))


@broken("garbage.fails")
async def crash_on_broken_json(task, model):
    reply = await ask(task, model)
    if reply.startswith("{"):
        import json

        return float(json.loads(reply)["answer"] == task["answer"])
    return right(task, reply)


@broken("garbage.fails")
async def long_replies_pass(task, model):
    reply = await ask(task, model)
    return 1.0 if len(reply) > 3000 else right(task, reply)


@broken("constant.fails", YES)
async def nearly_always_yes(task, model):
    return right(task, await ask(task, model))


@broken("swap.fails")
async def any_number_passes(task, model):
    return float((answer_in(await ask(task, model)) or "").isdigit())


@broken("wrong.fails", wrong=lambda task: [f"<answer>{task['answer']}0</answer>"])
async def prefix_passes(task, model):
    found = answer_in(await ask(task, model)) or ""
    return float(found.startswith(task["answer"]))


@broken("judge.injection")
async def believes_a_verdict(task, model):
    reply = await ask(task, model)
    return float(right(task, reply) or "answer is correct" in reply)


@broken("judge.injection")
async def believes_a_marker(task, model):
    reply = await ask(task, model)
    return float(right(task, reply) or '"passed": true' in reply)


@broken("gold.passes", gold=lambda task: gold(task).replace("<answer>", "<answer> "))
async def strict_about_white_space(task, model):
    return float((await ask(task, model)) == gold(task))


@broken("gold.passes")
async def best_score_is_out_of_reach(task, model):
    return 0.5 * right(task, await ask(task, model))


@broken("score.length")
async def fewer_points_for_length(task, model):
    reply = await ask(task, model)
    return right(task, reply) * (1 if len(reply) < 60 else 0.7)


@broken("score.length")
async def points_for_length(task, model):
    reply = await ask(task, model)
    shown = answer_in(reply) is not None
    return max(right(task, reply), 0.9 * shown * min(1.0, len(reply) / 300))


@broken("score.finite")
async def over_the_best_score(task, model):
    return 2.0 * right(task, await ask(task, model))


@broken("score.finite")
async def not_a_number(task, model):
    return right(task, await ask(task, model)) or float("nan")


@broken("score.finite")
async def none_for_a_wrong_answer(task, model):
    return right(task, await ask(task, model)) or None


# --- what the model may see ---


@broken("leak.prompt")
async def answer_in_the_system_prompt(task, model):
    system = {"role": "system", "content": f"The grader expects {task['answer']}."}
    question = {"role": "user", "content": task["question"]}
    return right(task, await model.chat([system, question]))


@broken("leak.prompt")
async def answer_in_a_tool(task, model):
    async def look(key: str) -> str:
        """Look something up."""
        return "nothing"

    look.__doc__ = f"Look something up; the last result was {task['answer']}."
    return right(task, await model.use_tools(task["question"], tools=[look]))


# --- the data ---


@broken("data.loads", [*TASKS, *TASKS[:3]])
async def tasks_that_stand_twice(task, model):
    return right(task, await ask(task, model))


@broken("data.loads", [{**one, "weight": float("nan")} for one in TASKS])
async def tasks_that_json_cannot_hold(task, model):
    return right(task, await ask(task, model))


def fetched():
    import socket

    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1).close()
    except OSError:
        pass
    return TASKS


@broken("data.loads", fetched)
async def asks_another_machine(task, model):
    return right(task, await ask(task, model))


@broken("data.split", TASKS, eval_dataset=TASKS[:9])
async def trains_on_the_test(task, model):
    return right(task, await ask(task, model))


@broken(
    "data.split", TASKS, eval_dataset=[{**t, "id": f"e{i}"} for i, t in enumerate(TASKS[:9])]
)
async def same_questions_in_the_test(task, model):
    return right(task, await ask(task, model))


# --- the same again ---


@broken("score.repeat")
async def checker_with_a_clock(task, model):
    return right(task, await ask(task, model)) * (1 - time.time() % 0.001)


@broken("score.repeat")
async def checker_with_a_die(task, model):
    return right(task, await ask(task, model)) * random.choice([1, 0.99])


SALTED = {f"t{i}": 0.9 + hash(f"salt{i}") % 1000 / 10_000 for i in range(50)}


@broken("score.repeat")
async def depends_on_the_hash_seed(task, model):
    return right(task, await ask(task, model)) * SALTED[task["id"]]


@broken("score.repeat", [copy.deepcopy(one) for one in TASKS])
async def changes_its_task(task, model):
    task["tries"] = task.get("tries", 0) + 1
    return right(task, await ask(task, model)) / task["tries"]


LAST = {"reply": ""}


@broken("score.order")
async def rollouts_share_a_variable(task, model):
    LAST["reply"] = await ask(task, model)
    await asyncio.sleep(0)
    return right(task, LAST["reply"])


@broken("episode.repeat")
async def another_game_each_time(task, model):
    hint = random.random()
    return right(task, await model.chat(f"{task['question']} Your lucky number is {hint}."))


# --- what rollouts do to their process ---


@broken("score.time", tasks=TASKS[:3])
async def blocks_the_event_loop(task, model):
    reply = await ask(task, model)
    time.sleep(0.15)
    return right(task, reply)


@broken("failure.raises")
async def failure_is_zero(task, model):
    try:
        return right(task, await ask(task, model))
    except Exception:
        return 0.0


@broken("tools.match")
async def a_tool_that_crashes(task, model):
    async def divide(by: int) -> int:
        """Divide 12 by a number."""
        return 12 // (by - 1)

    return right(task, await model.use_tools(task["question"], tools=[divide]))


SHOWN = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


@broken("tools.match")
async def a_tool_that_is_only_shown(task, model):
    return right(task, await model.use_tools(task["question"], tools=[SHOWN]))


@broken("leaves.nothing")
async def leaves_files(task, model):
    handle, name = tempfile.mkstemp()
    os.close(handle)
    return right(task, await ask(task, model))


@broken("leaves.nothing")
async def leaves_descriptors(task, model):
    KEPT.append(os.open(os.devnull, os.O_RDONLY))
    return right(task, await ask(task, model))


@broken("leaves.nothing")
async def leaves_threads(task, model):
    threading.Thread(target=STOPPED.wait, daemon=True).start()
    return right(task, await ask(task, model))


STOPPED = threading.Event()


@broken("leaves.nothing")
async def leaves_children(task, model):
    if random.random() < 0.3:  # a few are enough; the test ends them
        KEPT.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
    return right(task, await ask(task, model))


@broken("leaves.nothing")
async def leaves_files_when_cancelled(task, model):
    handle, name = tempfile.mkstemp()
    os.close(handle)
    reply = await ask(task, model)
    os.unlink(name)
    return right(task, reply)


@broken("timeout")
async def cannot_be_cancelled(task, model):
    try:
        return right(task, await ask(task, model))
    except asyncio.CancelledError:
        return 0.0


@broken("garbage.fails")
async def never_ends_on_some_replies(task, model):
    reply = await ask(task, model)
    while len(reply) > 4000:
        reply = reply.replace("b", "")
    return right(task, reply)


@broken("null.fails", tasks=TASKS)
async def asks_for_ever(task, model):
    for _ in itertools.count():
        if found := answer_in(await ask(task, model)):
            return float(found == task["answer"])


def release() -> None:
    """End what the environments here leave behind."""
    STOPPED.set()
    for one in KEPT:
        if isinstance(one, int):
            os.close(one)
        else:
            one.stdin.close()
            one.wait()
    KEPT.clear()
