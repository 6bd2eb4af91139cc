"""Sound environments of many kinds: no check may fail or warn."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

SOUND: list[str] = []
NUMBERS = [
    {"id": f"n{i}", "question": f"What is {i} times {i + 5}, plus 2000?", "answer": f"{a}"}
    for i, a in ((i, 2000 + i * (i + 5)) for i in range(4, 44))
]
WORDS = "apple river stone cloud tiger piano maple ocean candle bridge silver garden rocket".split()


def tagged(task):
    return f"<answer>{task['answer']}</answer>"


def answer_in(reply):
    found = re.findall(r"<answer>([^<]*)</answer>", reply)
    return found[-1].strip() if len(found) == 1 else None


def exact(task, reply):
    return float(answer_in(reply) == task["answer"])


def sound(tasks=NUMBERS, gold=tagged, *, card=None, **options):
    def made(function):
        SOUND.append(function.__name__)
        facts = Card("sound", "made here", "MIT", gold, **(card or {}))
        return environment(tasks, card=facts, **options)(function)

    return made


@sound()
async def tags(task, model):
    return exact(task, await model.chat(task["question"]))


@sound(gold=lambda task: task["answer"])
async def bare_number(task, model):
    reply = await model.chat(task["question"] + " Answer with the number only.")
    return reply.strip() == task["answer"]


@sound(gold=lambda task: f"So it is \\boxed{{{task['answer']}}}.")
async def boxed(task, model):
    found = re.findall(r"\\boxed\{([^{}]*)\}", await model.chat(task["question"]))
    return float(found[-1:] == [task["answer"]] and len(found) == 1)


@sound(gold=lambda task: f"The answer is {task['answer']}")
async def last_number(task, model):
    numbers = re.findall(r"\d+", await model.chat(task["question"]))
    return float(numbers[-1:] == [task["answer"]])


CHOICES = [
    {
        "id": f"c{i}",
        "question": f"Which word has the number {i}? "
        + " ".join(f"{letter}: {WORDS[(i + j) % 13]}" for j, letter in enumerate("ABCD")),
        "answer": random.Random(i).choice("ABCD"),
    }
    for i in range(60)
]


@sound(CHOICES, gold=lambda task: f"Answer: {task['answer']}")
async def multiple_choice(task, model):
    found = re.fullmatch(r"Answer: ([A-D])", (await model.chat(task["question"])).strip())
    return float(found is not None and found[1] == task["answer"])


CLAIMS = [
    {"id": f"b{i}", "question": f"Is {i} in the list number {i % 7}?", "answer": "yn"[i % 2]}
    for i in range(80)
]


@sound(CLAIMS, gold=lambda task: {"y": "yes", "n": "no"}[task["answer"]])
async def yes_or_no(task, model):
    reply = (await model.chat(task["question"])).strip()
    return float(reply == {"y": "yes", "n": "no"}[task["answer"]])


@sound(card={"floor": -1.0})
async def wrong_costs_a_point(task, model):
    return 2 * exact(task, await model.chat(task["question"])) - 1


LISTS = [
    {"id": f"l{i}", "words": random.Random(i).sample(WORDS, 4), "question": f"List {i}?"}
    for i in range(40)
]


@sound(LISTS, gold=lambda task: json.dumps({"words": task["words"]}))
async def parts_of_json(task, model):
    try:
        found = json.loads(await model.chat(task["question"]))["words"]
        assert isinstance(found, list) and len(found) == 4
        return float(sum(a == b for a, b in zip(found, task["words"])) / 4)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        return 0.0


def right(task, answer):
    return answer_in(answer) == task["answer"]


def short(task, answer):
    return right(task, answer) and len(answer) < 2000


@sound(rewards={right: 0.9, short: 0.1})
async def two_rewards(task, model):
    return await model.chat(task["question"])


def guesses(task):
    return ["50", "25", f"{task['number']}"]


GUESSES = [{"id": f"g{i}", "number": 100 + 7 * i} for i in range(40)]


@sound(GUESSES, gold=guesses)
async def a_game_of_turns(task, model):
    reply = await model.chat("Guess my number between 1 and 400.")
    for _ in range(5):
        if not reply.strip().isdecimal() or len(reply) > 4:
            return 0.0
        if int(reply) == task["number"]:
            return 1.0
        hint = "Higher." if int(reply) < task["number"] else "Lower."
        reply = await model.chat([*reply.messages, {"role": "user", "content": hint}])
    return 0.0


def with_a_call(task):
    arguments = json.dumps({"name": "price_of", "arguments": {"item": task["item"]}})
    return [f"<tool_call>{arguments}</tool_call>", f"<answer>{task['price']}</answer>"]


PRICES = [{"id": f"p{i}", "item": f"part {i}", "price": 3000 + 17 * i} for i in range(40)]


@sound(PRICES, gold=with_a_call)
async def a_tool_to_call(task, model):
    async def price_of(item: str) -> str:
        """Price of an item."""
        prices = {one["item"]: one["price"] for one in PRICES}
        return str(prices.get(item, "unknown item"))

    question = f"What is the price of {task['item']}? Put it in answer tags."
    reply = await model.use_tools(question, tools=[price_of], max_turns=4)
    calls = [call for one in model.replies for call in one.tool_calls]
    return float(bool(calls) and answer_in(reply) == str(task["price"]))


@asynccontextmanager
async def database():
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("CREATE TABLE answers (id TEXT, answer TEXT)")
    rows = [(one["id"], one["answer"]) for one in NUMBERS]
    connection.executemany("INSERT INTO answers VALUES (?, ?)", rows)
    yield connection
    connection.close()


@sound(lifespan=database)
async def a_database(task, model, resources):
    answer = answer_in(await model.chat(task["question"]))
    query = "SELECT 1 FROM answers WHERE id = ? AND answer = ?"
    return float(resources.execute(query, (task["id"], answer)).fetchone() is not None)


@sound()
async def a_folder_of_its_own(task, model):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reply.txt"
        reply = await model.chat(task["question"])
        path.write_text(reply, errors="replace")
        return exact(task, path.read_text())


CHECKER = "import sys; print(int(sys.stdin.read() == sys.argv[1]))"


@sound(NUMBERS[:20])
async def a_checking_program(task, model):
    answer = answer_in(await model.chat(task["question"])) or ""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", CHECKER, task["answer"]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate(answer.encode(errors="replace"))
    return float(printed.strip() == b"1")


COPIES = [{"id": one["id"], "text": f"Order {one['answer']} leaves today."} for one in NUMBERS]
READS = {
    "bounds": {"leak.prompt": (None, "the task is to find the number in a text")},
}


@sound(COPIES, lambda task: task["text"].split()[1], card=READS)
async def reading(task, model):
    reply = await model.chat(f"Which order? {task['text']} Answer with the number only.")
    return float(reply.strip() == task["text"].split()[1])


@sound()
async def an_agent_with_a_client(task, model):
    async with await model.openai() as client:
        asked = [{"role": "user", "content": task["question"]}]
        reply = await client.chat.completions.create(model="any", messages=asked)
    return exact(task, reply.choices[0].message.content)


@sound(
    [{**one, "id": f"e{one['id']}"} for one in NUMBERS],
    eval_dataset=[{**NUMBERS[0], "id": "e", "question": "1?"}],
)
async def a_test_of_its_own(task, model):
    reply = await model.chat(
        [
            {"role": "system", "content": "Be exact."},
            {"role": "user", "content": task["question"]},
        ]
    )
    return exact(task, reply)
