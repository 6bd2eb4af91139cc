"""Rollouts of environments that are classes: the tried reply in a group with further replies.

item -> collect_trajectory                      the score of the sample
     -> collect_trajectories(tried, wrong, gold) -> its row, found by the text -> the score
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from atroposlib.envs.base import BaseEnv
from atroposlib.envs.function_env.card import Card, Replies
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.rollout.groups import collate, groups_in, item_label, score_problem
from atroposlib.envs.runtime.creation import make_env
from atroposlib.envs.runtime.env_runtime import runtime_of
from atroposlib.errors import boundary
from atroposlib.utils.tokenizers.loading import is_path, load_tokenizer_named
from atroposlib.validation.scripted_engine import (
    BYTES_PER_TOKEN,
    PLAYING,
    ScriptedGroup,
    byte_tokenizer,
    scripted_manager,
)
from atroposlib.validation.sessions import RecordingSession
from atroposlib.wire import MASKED

WRONG = "I do not know the answer to this question, so there is no answer from me."
SAMPLES = 3  # samples of a group: the tried reply, a wrong reply and the gold reply
ITEMS_S = 15.0  # time limit of items beyond the first LEAST_ITEMS
MOST_ITEMS, LEAST_ITEMS, MOST_REPEATS = 2000, 64, 64
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
LEFT_OUT = {
    "data.split": "a class reads its held-out items in evaluate, which is not run",
    "tools.match": "a class calls its tools itself",
}
ALONE = "each sample is scored by itself"


class ReplyRow(NamedTuple):
    """Trained text of a row, and its score."""

    text: str
    score: float | None


@dataclass
class ClassRollouts:
    """Plays given replies through the collect methods of a class."""

    env: Any
    card: Card | None

    @property
    def alone(self) -> bool:
        """Whether the class scores its samples one at a time."""
        return type(self.env).collect_trajectories is BaseEnv.collect_trajectories

    @property
    def left_out(self) -> dict[str, str]:
        """Checks that do not apply, with the reason."""
        why = ""
        if self.alone or self.card is None:
            why = ALONE if self.alone else "no gold replies"
        elif self._others() < 2:
            why = f"a group of {self.env.config.group_size} has no place for two others"
        return {**LEFT_OUT, **({"score.group": why} if why else {})}

    def _others(self) -> int:
        return 0 if self.alone else min(SAMPLES, self.env.config.group_size) - 1

    async def given(self, item: Any, session: RecordingSession) -> tuple[Reward, None]:
        """Run a rollout; without a score in any group the rollout has no score.

        A class may give no group for equal scores, so the group also holds a different reply.
        """
        gold = self._gold(item) or WRONG
        # a sane class never scores these equally
        groups: list[list[Replies]] = [[WRONG, gold]]
        if self._others() < 2:
            pairs: list[list[Replies]] = [[WRONG], [gold]]
            groups = pairs[: 2 if self.card else 1] if self._others() else [[]]
        score: float | None = None
        for group in groups:
            score = await self.beside(item, session, group)
            if score is not None:
                break
            session = session.again()
        return Reward(score), None

    def _gold(self, item: Any) -> Replies:
        return self.card.gold(item["task"]) if self.card is not None else ()

    async def beside(
        self, item: Any, session: RecordingSession, others: Sequence[Replies]
    ) -> float | None:
        """Score of the replies of ``session`` in a group with ``others``; None if it has none.

        Raises RolloutError: the class failed, or its rows cannot be distinguished.
        """
        env, name = self.env, item["id"]
        group = ScriptedGroup([session, *map(RecordingSession, others)])
        token = PLAYING.set(group)
        try:
            with boundary(
                runtime_of(env).label(), name, "rollout", type(env).collect_trajectories
            ):
                scored = await self._collect_group(item["task"])
                if scored:
                    scored = await env.postprocess_histories(scored)
            with boundary(
                runtime_of(env).label(), name, "score", type(env).collect_trajectories
            ):
                return score_in(self._rows(scored), group)
        finally:
            PLAYING.reset(token)
            await env.cleanup()

    async def _collect_group(self, item: Any) -> Any:
        if not self.alone:
            return (await self.env.collect_trajectories(item))[0]
        sample, _ = await self.env.collect_trajectory(item)
        return None if sample is None or sample.get("scores") is None else collate([sample])

    def _rows(self, scored: Any) -> list[ReplyRow]:
        rows = []
        for group in groups_in(scored):
            for mask, score in zip(group["masks"], group["scores"]):
                if (problem := score_problem({"scores": score})) is not None:
                    raise ValueError(f"{problem}: it cannot be trained on")
                trained = [int(token) for token in mask if token != MASKED]
                text = self.env.tokenizer.decode(trained, skip_special_tokens=True)
                rows.append(ReplyRow(text.strip(), None if score is None else float(score)))
        return rows


def score_in(rows: Sequence[ReplyRow], group: ScriptedGroup) -> float | None:
    """The score of the first script: of the row left after all further scripts have a row.

    None if no row remains: the class left the sample out. Raises ValueError: several remain.
    """
    tried, left = group.texts(0), list(rows)
    for script in range(1, len(group.scripts)):
        texts = group.texts(script)
        same = [row for row in left if row.text in texts]
        near = [
            row
            for row in left
            if row.text not in tried and any(text and text in row.text for text in texts)
        ]
        for row in (same or near)[:1]:
            left.remove(row)
    left = [row for row in left if row.text in tried] or left
    scores = {row.score for row in left}
    if len(scores) > 1:
        raise ValueError(
            f"the rows of a group cannot be distinguished: {len(left)} may be tried"
        )
    return next(iter(scores), None)


async def open_case(env_cls: Any, settings: Any) -> Any:
    """The environment with scripted replies in place of its servers."""
    config = settings.env
    changes: dict[str, Any] = {"group_size": min(SAMPLES, config.group_size)}
    if is_path(config.tokenizer_name):
        tokenizer = load_tokenizer_named(config.tokenizer_name)
    else:  # the hub is a remote machine
        tokenizer = byte_tokenizer(Path(mkdtemp(prefix="tokenizer-")))
        changes["max_token_length"] = config.max_token_length * BYTES_PER_TOKEN
    changed = replace(settings, env=config.model_copy(update=changes))
    manager = scripted_manager(tokenizer, settings.manager.tool_parser)
    random.seed(0)  # a second process then has the same items
    # Constructors of older environments need a thread without a running event loop.
    with boundary(env_cls.name or env_cls.__name__, None, "its constructor", env_cls):
        env: Any = await asyncio.to_thread(make_env, env_cls, changed, manager, tokenizer)
    return env


async def items_of(env: Any) -> list[dict[str, Any]]:
    """Different items of ``get_next_item`` until they repeat, as {"id", "task", "epoch"}.

    Raises RolloutError: it failed.
    """
    items: dict[str, dict[str, Any]] = {}
    repeats, started = 0, time.monotonic()
    while len(items) < MOST_ITEMS and repeats < MOST_REPEATS:
        if len(items) >= LEAST_ITEMS and time.monotonic() - started > ITEMS_S:
            break
        label = str(getattr(env, "name", None) or type(env).__name__)
        with boundary(label, None, "get_next_item", type(env).get_next_item):
            item = await env.get_next_item()
        if item is None:
            break
        text = stable_text(item)
        if text == next(iter(items), None):
            break
        repeats += text in items
        items.setdefault(text, {"id": name_of(item, text), "task": item, "epoch": 0})
    return list(items.values())


def name_of(item: Any, text: str) -> str:
    """The ``id`` of an item, else its first words and a digest."""
    if isinstance(item, Mapping) and item.get("id") is not None:
        return item_label(item)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return " ".join([*re.findall(r"\w+", text)[:5], digest])


def stable_text(value: Any) -> str:
    """A text of ``value`` that is the same in every process."""
    if isinstance(value, Mapping):
        return str({str(key): stable_text(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return str([stable_text(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return str(sorted(map(stable_text, value)))
    return ADDRESS.sub("", repr(value))
