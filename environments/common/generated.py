"""Generated tasks and answers in replies, for the environments of library/. Pure."""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import Field

from atroposlib.errors import ConfigError
from atroposlib.text.parts import answer_of

SETTINGS: dict[str, Any] = {
    "tasks": Field(default=400, ge=2, description="tasks made from seed, all different")
}
TAGS = "Put only the answer into the tags <answer></answer>."
TRIES = 50  # per task
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WORD = re.compile(r"\b[a-z]{4,9}\b")


def distinct(
    make: Callable[[random.Random], dict[str, Any] | None], count: int, seed: int
) -> list[dict[str, Any]]:
    """``count`` tasks of ``make`` whose questions differ; their ids are hashes of the questions.

    ``make`` may return None for an unusable task. Raises ConfigError: there are too few.
    """
    rng, tasks = random.Random(seed), {}
    for _ in range(TRIES * count):
        if len(tasks) == count:
            break
        if task := make(rng):
            digest = hashlib.sha256(task["question"].encode()).hexdigest()[:12]
            tasks.setdefault(digest, {"id": digest, **task})
    if len(tasks) < count:
        raise ConfigError(f"--env.tasks {count}: only {len(tasks)} different ones were found")
    return list(tasks.values())


def tasks_of(make: Callable[[random.Random], dict[str, Any] | None]) -> Callable[..., Any]:
    """A data set of :func:`distinct` tasks, as many as the settings name."""
    return lambda config: distinct(make, config.tasks, config.seed)


def answer_in(text: str) -> str | None:
    """Content of the only pair of answer tags after the thinking; None without exactly one pair."""
    answers = _ANSWER.findall(answer_of(text))
    return answers[0].strip() if len(answers) == 1 else None


def code_in(text: str, language: str) -> str | None:
    """The only fenced block after the thinking; None without exactly one block."""
    blocks = re.findall(rf"```(?:{language})?\n(.*?)```", answer_of(text), re.DOTALL)
    return blocks[0] if len(blocks) == 1 else None


def tool_call(name: str, /, **arguments: Any) -> str:
    """A call in the format of hermes, as gold replies have it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def code_block(code: str, language: str) -> str:
    return f"```{language}\n{code.rstrip()}\n```"


@cache
def words() -> list[str]:
    """Frequent words of the Python documentation, which the standard library carries."""
    from pydoc_data.topics import topics

    counts = Counter(_WORD.findall(" ".join(topics.values())))
    return sorted(word for word, count in counts.items() if count >= 4)
