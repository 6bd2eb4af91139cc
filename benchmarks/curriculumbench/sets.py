"""Task sets of the study of samplers, each with the function that plays and scores it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.environments.library.letters import letters
from atroposlib.environments.library.tic_tac_toe import tic_tac_toe
from atroposlib.envs.function_env.card import ScriptedSession, score_session
from atroposlib.envs.function_env.rollout_model import Model

HELD_OUT = 128


@dataclass(frozen=True)
class TaskSet:
    """Tasks, the function that plays and scores a task, and replies to imitate."""

    rows: Sequence[Any]
    held_out: Sequence[Any]
    play: Callable[[Any, Model], Awaitable[float]]
    demonstrate: Callable[[Any, random.Random], Any]  # a session that replies
    max_new: int  # tokens of a reply
    has_gold: bool = True  # demonstrations are the same each time
    lessons: Sequence[Any] = ()  # tasks to imitate in place of ``rows``


def library_set(
    env_cls: Any,
    seed: int,
    *,
    max_new: int,
    demonstrate: Callable[[Any, random.Random], Any] | None = None,
    lessons: int = 0,
    **settings: Any,
) -> TaskSet:
    """Tasks of an environment of the library; without ``demonstrate`` its gold replies.

    Args:
        lessons: tasks at the end that are imitated, and neither trained by rewards nor held out.
    """
    config = env_cls.env_config_cls(**settings, seed=seed)
    every = list(env_cls.definition.dataset(config))
    rows = every[: len(every) - lessons]
    random.Random(seed).shuffle(rows)
    held_out = min(HELD_OUT, len(rows) * 3 // 10)
    gold = env_cls.definition.card.gold

    async def play(task: Any, model: Model) -> float:
        reward = await score_session(env_cls, task, model, config)
        return float(reward.score or 0.0)

    return TaskSet(
        rows[held_out:],
        rows[:held_out],
        play,
        demonstrate or (lambda task, rng: ScriptedSession(gold(task))),
        max_new,
        has_gold=demonstrate is None,
        lessons=every[len(rows) :],
    )


class LegalMoves(ScriptedSession):
    """Replies with a random digit of the shown board: the free cells are numbered."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(())
        self.rng = rng

    async def chat_completion(self, *, messages: Sequence[Any] = (), **sampling: Any) -> Any:
        self.left = [self.rng.choice([c for c in messages[-1]["content"] if c.isdigit()])]
        return await super().chat_completion(**sampling)


def copied_words(rows: Sequence[Any], held_out: Sequence[Any], max_new: int) -> TaskSet:
    """Words to copy, which give no reward where the task is not ``possible``."""

    async def play(task: Any, model: Model) -> float:
        reply = await model.chat(task["word"])
        return float(task.get("possible", True) and reply == task["word"])

    def demonstrate(task: Any, rng: random.Random) -> ScriptedSession:
        return ScriptedSession(task["word"])

    return TaskSet(rows, held_out, play, demonstrate, max_new)


def impossible_set(seed: int) -> TaskSet:
    """Two letters to copy; of 400 tasks 40 can be solved."""
    rng = random.Random(seed)
    words = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    rng.shuffle(words)
    rows = [{"word": rng.choice(words[50:]), "possible": n % 10 == 0} for n in range(400)]
    return copied_words(rows, [{"word": word} for word in words[:50]], max_new=3)


def graded_set(seed: int) -> TaskSet:
    """Words of up to six letters to copy: the longer, the harder; evaluated on all lengths."""
    rng = random.Random(seed)
    rows = [{"word": "".join(rng.choices("abcdefghij", k=n % 6 + 1))} for n in range(480)]
    rng.shuffle(rows)
    return copied_words(rows[HELD_OUT:], rows[:HELD_OUT], max_new=7)


SETS: dict[str, Callable[[int], TaskSet]] = {
    "count": lambda seed: library_set(
        letters, seed, max_new=2, words=1, backwards=0, bare=True, tasks=900
    ),
    "letters": lambda seed: library_set(
        letters, seed, max_new=10, words=1, bare=True, tasks=2600, lessons=2000
    ),
    "backwards": lambda seed: library_set(
        letters, seed, max_new=28, words=1, backwards=1, tasks=1000
    ),
    "phrases": lambda seed: library_set(
        letters, seed, max_new=30, backwards=1, bare=True, tasks=2400, lessons=2000
    ),
    "tic_tac_toe": lambda seed: library_set(
        tic_tac_toe,
        seed,
        max_new=2,
        demonstrate=lambda task, rng: LegalMoves(rng),
        bare=True,
        history=False,
    ),
    "graded": graded_set,
    "impossible": impossible_set,
}
