"""The teacher of an environment: logprobs of the tokens of each group, from its servers.

    accepted group --> reading of each row --> teacher's servers --> aligned rows --> group, sent
                                 |                '-- silent: a named wait of at most timeout_s
                                 '-- refused: an error that names env, item and stage

A group is never sent without its teacher. A silent teacher ends the environment: its samples are in
the journal, and its next life asks again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from atroposlib.envs.rollout.filters import AcceptedGroup, to_columns
from atroposlib.envs.rollout.groups import ScoredDataGroup, item_label, plain
from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.envs.teaching.hint import call_hint, hint_ids
from atroposlib.envs.teaching.teacher_rows import (
    Reading,
    TeacherRows,
    aligned_rows,
    answer_start,
    reading_of,
)
from atroposlib.envs.teaching.teacher_servers import TeacherServers
from atroposlib.errors import (
    ConfigError,
    InferenceRefused,
    InferenceUnavailable,
    InvalidGroup,
    RolloutError,
    TeacherUnavailable,
    TokensMissing,
    boundary,
)
from atroposlib.generation.configs import ServerBaseline
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.utils.tokenizers.loading import load_tokenizer_named
from atroposlib.utils.tokenizers.vocabulary import VocabularyMap, vocabulary_map
from atroposlib.wire import MASKED

T = TypeVar("T")
NAMED_AFTER_S = 5.0  # shorter waits have no name
RETRY_PAUSE_S = 1.0
# No repetition of the request helps against these.
REFUSALS = (InferenceRefused, TokensMissing, InvalidGroup)


@dataclass
class Student:
    """Parts of the environment that a teacher uses; each is looked up when it is needed."""

    label: Callable[[], str]
    servers: Callable[[], ServerManager]  # they hold the trained model
    tokenizer: Callable[[], Any]
    tokenizer_name: Callable[[], str]
    hint: Callable[..., Any] | None = None  # the hook ``teacher_prompt``
    # Receives the name of a long wait, and None at its end.
    on_wait: Callable[[str | None], None] = lambda reason: None
    log: Callable[[str, float], None] = lambda name, value: None


@dataclass
class Teacher:
    """Asks for the logprobs of groups; the first call connects and compares vocabularies."""

    settings: TeacherSettings
    student: Student
    groups: int = 0  # they have the teacher's logprobs
    tokens: int = 0
    _servers: TeacherServers | None = None  # None: the servers of the student
    _vocabulary: VocabularyMap | None = None
    _preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

    def __post_init__(self) -> None:
        if not self.settings.is_policy:
            self._servers = TeacherServers(self.settings)

    @property
    def name(self) -> str:
        return f"the teacher {' '.join(self.settings.urls)}"

    async def prepare(self) -> VocabularyMap:
        """Connect, and compare the vocabularies.

        Raises:
            ConfigError: the model is not served, or its tokenizer cannot judge the student's tokens.
            TeacherUnavailable: no server answered within ``timeout_s``.
        """
        async with self._preparing:
            if self._vocabulary is None:
                self._vocabulary = await self._within_bound(self._connect, "an answer")
            return self._vocabulary

    async def teach(self, accepted: AcceptedGroup, item: Any) -> AcceptedGroup:
        """The group with the teacher's logprobs; a group that has a teacher's already is not changed.

        Raises:
            RolloutError: the teacher refused a row, or its answer does not fit.
            TeacherUnavailable: no answer within ``timeout_s``.
        """
        group = accepted.group
        if group.get("distill_token_ids") is not None:
            return accepted
        vocabulary = await self.prepare()
        env = self.student.label()
        with boundary(env, item, "teacher"):
            try:
                rows = await self._rows_of(group, item, vocabulary)
            except REFUSALS as refusal:
                raise RolloutError(env, item_label(item), "teacher", refusal) from refusal
        self._count(group, rows)
        taught = {
            **group,
            "distill_token_ids": [ids for ids, _ in rows],
            "distill_logprobs": [logprobs for _, logprobs in rows],
        }
        # In a thread: K entries for each of 10^5 tokens block every rollout.
        columns = await asyncio.to_thread(to_columns, taught)
        return replace(accepted, group=cast(ScoredDataGroup, taught), columns=columns)

    def figures(self) -> dict[str, float]:
        """Counts for heartbeats."""
        return {"teacher_groups": self.groups, "teacher_tokens": self.tokens}

    async def close(self) -> None:
        """Close the connections to servers that are not the student's."""
        if self._servers is not None:
            await self._servers.close()

    # --- connection -------------------------------------------------------------------

    async def _connect(self) -> VocabularyMap:
        student = self.student
        ours = await asyncio.to_thread(student.tokenizer)
        own_name = student.tokenizer_name()
        if self._servers is None:
            return vocabulary_map(ours, ours, (own_name, own_name))
        servers = self._servers.at_current_addresses()
        try:
            for server in servers.servers:
                await server.health.wait_until_healthy()
        except ConfigError as error:
            text = str(error).replace("--openai.model_name", "env.teacher.model")
            text = text.replace("--openai.", "env.teacher.")
            raise ConfigError(f"{self.name}: {text}") from error
        name = tokenizer_of(servers.servers[0].config)
        try:
            theirs = await asyncio.to_thread(load_tokenizer_named, name)
        except ConfigError as error:
            raise ConfigError(f"env.teacher.tokenizer: {error}") from error
        return vocabulary_map(ours, theirs, (own_name, name))

    # --- requests ---------------------------------------------------------------------

    async def _rows_of(
        self, group: ScoredDataGroup, item: Any, vocabulary: VocabularyMap
    ) -> list[TeacherRows]:
        tokens_G, masks_G = plain(group["tokens"]), plain(group["masks"])
        readings = [
            reading_of(tokens, mask, await self._hint(tokens, mask, item), vocabulary)
            for tokens, mask in zip(tokens_G, masks_G)
        ]
        is_trained = [answer_start(mask) < len(mask) for mask in masks_G]
        asked = [reading for reading, wanted in zip(readings, is_trained) if wanted]
        answers = iter(
            await self._within_bound(
                lambda: gather_or_cancel(map(self._ask, asked)),
                f"logprobs of {len(asked)} sequences",
            )
        )
        return [
            aligned_rows(reading, tokens, mask, next(answers), vocabulary, self.settings.top_k)
            if wanted
            else ([[] for _ in tokens], [[] for _ in tokens])
            for reading, wanted, tokens, mask in zip(readings, is_trained, tokens_G, masks_G)
        ]

    async def _hint(
        self, tokens: Sequence[int], mask: Sequence[int], item: Any
    ) -> list[int] | None:
        if self.student.hint is None:
            return None
        hint = await call_hint(self.student.hint, item, tokens[: answer_start(mask)])
        return hint_ids(hint, self.student.tokenizer())

    async def _ask(self, reading: Reading) -> dict[str, Any]:
        servers = self._servers.now() if self._servers else self.student.servers()
        return await servers.get_logprobs(
            input_ids=reading.tokens, top_k=self.settings.top_k, max_tokens=1, split="train"
        )

    async def _within_bound(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """The result of ``call``, again while no server answers, within ``timeout_s``."""
        last: InferenceUnavailable | None = None

        async def until_answered() -> T:
            nonlocal last
            while True:
                try:
                    return await (
                        self._servers.unless_moved(call) if self._servers else call()
                    )
                except InferenceUnavailable as absence:
                    last = absence
                await asyncio.sleep(RETRY_PAUSE_S)

        def named() -> str:
            return f"{self.name}: {what}{f' ({last})' if last else ''}"

        timeout_s = self.settings.timeout_s
        task = asyncio.ensure_future(until_answered())
        try:
            done, _ = await asyncio.wait({task}, timeout=min(NAMED_AFTER_S, timeout_s))
            if not done and timeout_s > NAMED_AFTER_S:
                await self._wait_named(task, timeout_s - NAMED_AFTER_S, named)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            raise TeacherUnavailable(
                f"{self.name}: {what} did not come within {timeout_s:g} s: start its server, or"
                f" raise env.teacher.timeout_s{f' ({last})' if last else ''}"
            ) from last
        return task.result()

    async def _wait_named(
        self, task: asyncio.Task[T], timeout_s: float, named: Callable[[], str]
    ) -> None:
        """Wait for ``task``, with a name that has the last failure of its requests."""
        self._waiting += 1
        until = time.monotonic() + timeout_s
        try:
            while not task.done() and (left := until - time.monotonic()) > 0:
                self.student.on_wait(named())
                await asyncio.wait({task}, timeout=min(left, NAMED_AFTER_S))
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.student.on_wait(None)

    def _count(self, group: ScoredDataGroup, rows: Sequence[TeacherRows]) -> None:
        """Count the tokens, and log the mean distance of the sampler's logprobs to the teacher's."""
        self.groups += 1
        sampled = plain(group.get("inference_logprobs"))
        distances = [
            sampled[g][t] - logprobs[t][0]
            for g, (_, logprobs) in enumerate(rows)
            for t, label in enumerate(group["masks"][g])
            if sampled and label != MASKED and logprobs[t]
        ]
        self.tokens += sum(bool(entry) for _, logprobs in rows for entry in logprobs)
        if distances:
            self.student.log("train/teacher_kl", sum(distances) / len(distances))


def tokenizer_of(teacher: ServerBaseline) -> str:
    """The name of a teacher's tokenizer, by default that of its model."""
    named = teacher.tokenizer_name
    return teacher.model_name if named in ("", "none") else named
