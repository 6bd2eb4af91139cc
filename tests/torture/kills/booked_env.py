"""Environments that note each finished sample in a book before the library sees it.

python -m tests.torture.kills.booked_env counted serve ...   an @environment, whose items are counted
python -m tests.torture.kills.booked_env handed serve ...    a BaseEnv with items of the original's kind
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from atroposlib.envs.base import BaseEnv
from atroposlib.envs.function_env.env import environment
from atroposlib.envs.rollout.groups import from_node

ITEMS, FOLDER = "BOOKED_ITEMS", "BOOKED_FOLDER"  # environment variables
MEAN_S = 0.15  # of the pause before a sample ends


def items() -> int:
    return int(os.environ.get(ITEMS, "0"))


def note(env: str, item: object, answer: str) -> None:
    """Write a line to the book; it is in the system's memory when this returns."""
    with (Path(os.environ[FOLDER]) / "book.txt").open("a") as book:
        book.write(f"{env} {item} {answer} {time.time()}\n")


def tasks() -> list[dict[str, Any]]:
    return [{"id": f"{i}"} for i in range(items())]


@environment(dataset=tasks, shuffle=False, epochs=1, eval_fraction=0.0, name="counted")
async def counted(task: dict[str, Any], model: Any) -> float:
    answer = await model.chat(task["id"], max_tokens=12)
    await asyncio.sleep(random.expovariate(1 / MEAN_S))
    note("counted", task["id"], answer)
    return random.random()


class Handed(BaseEnv):
    """Items are tuples, handed out once: a new process goes on after them.

    A kill between the write of the count and the journal's loses the item.
    """

    name = "handed"

    async def setup(self) -> None:
        self.count = Path(os.environ[FOLDER]) / "handed.txt"

    async def get_next_item(self) -> tuple[tuple[frozenset[Any], ...], str] | None:
        number = int(self.count.read_text()) if self.count.exists() else 0
        if number >= items():
            return None
        self.count.write_text(f"{number + 1}")
        message = frozenset({"role": "user", "content": f"{number}"}.items())
        return (message,), f"{number}"

    async def collect_trajectory(self, item: Any) -> Any:
        messages, number = item
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[dict(message) for message in messages], max_tokens=12
            )
            (node,) = managed.nodes_for(completion)
        await asyncio.sleep(random.expovariate(1 / MEAN_S))
        note("handed", number, completion.choices[0].message.content)
        return from_node(node, random.random()), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        return None


if __name__ == "__main__":
    {"counted": counted, "handed": Handed}[sys.argv.pop(1)].cli()
