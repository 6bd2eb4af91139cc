"""The teacher of an environment: logprobs of the tokens of each group, from its servers.

    accepted group --> reading of each row --> teacher's servers --> aligned rows --> group, sent
                                 |                '-- silent: a named wait of at most timeout_s
                                 '-- refused: an error that names env, item and stage

A group is never sent without its teacher. A silent teacher ends the environment: its samples are in
the journal, and its next life asks again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from atroposlib.envs.rollout.filters import AcceptedGroup, to_columns
from atroposlib.envs.rollout.groups import ScoredDataGroup, item_label, plain
from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.envs.teaching.address import current_addresses, is_file_address
from atroposlib.envs.teaching.hint import call_hint, hint_ids
from atroposlib.envs.teaching.teacher_rows import (
    Reading,
    TeacherRows,
    aligned_rows,
    answer_start,
    reading_of,
)
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
from atroposlib.generation.configs import APIServerConfig, ServerBaseline
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.utils.tokenizers.loading import load_tokenizer_named
from atroposlib.utils.tokenizers.vocabulary import VocabularyMap, vocabulary_map
from atroposlib.wire import MASKED

T = TypeVar("T")
NAMED_AFTER_S = 5.0  # shorter waits have no name
RETRY_PAUSE_S = 1.0
ADDRESS_LOOK_S = 2.0  # between two looks for another address in a file
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
    _servers: ServerManager | None = None
    _at: list[str] = field(default_factory=list)  # addresses of ``_servers``
    _left: list[ServerManager] = field(default_factory=list)  # servers at earlier addresses
    _vocabulary: VocabularyMap | None = None
    _preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

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
        if self._servers is not None and not self.settings.is_policy:
            for servers in (self._servers, *self._left):
                await servers.close()

    # --- connection -------------------------------------------------------------------

    async def _connect(self) -> VocabularyMap:
        settings, student = self.settings, self.student
        ours = await asyncio.to_thread(student.tokenizer)
        own_name = student.tokenizer_name()
        if settings.is_policy:
            self._servers = student.servers()
            return vocabulary_map(ours, ours, (own_name, own_name))
        servers = self._at_current_addresses()
        try:
            for server in servers.servers:
                await server.health.wait_until_healthy()
        except ConfigError as error:
            text = str(error).replace("--openai.model_name", "env.teacher.model")
            raise ConfigError(f"{self.name}: {text}") from error
        name = tokenizer_of(servers.servers[0].config)
        try:
            theirs = await asyncio.to_thread(load_tokenizer_named, name)
        except ConfigError as error:
            raise ConfigError(f"env.teacher.tokenizer: {error}") from error
        return vocabulary_map(ours, theirs, (own_name, name))

    def _at_current_addresses(self) -> ServerManager:
        """The servers at their present addresses; raises as :func:`current_addresses`."""
        at = current_addresses(self.settings.urls)
        if self._servers is None or at != self._at:
            self._left += [self._servers] if self._servers is not None else []
            self._servers = ServerManager([_config(self.settings, url) for url in at])
            self._at = at
        return self._servers

    async def _unless_moved(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of ``call``, which ends early when a server has another address.

        Raises InferenceUnavailable: it ended early, or no server answered.
        """
        if not any(map(is_file_address, self.settings.urls)):
            return await call()
        tasks = asyncio.ensure_future(call()), asyncio.ensure_future(self._until_moved())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                return tasks[0].result()
            raise InferenceUnavailable(f"the server has moved to {' '.join(self._at)}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_moved(self) -> None:
        """Return when a file holds another address than at the call."""
        at = self._at
        while not at or at == self._at:
            await asyncio.sleep(ADDRESS_LOOK_S)
            at = at or self._at  # empty before the first connection
            with suppress(InferenceUnavailable):
                self._at_current_addresses()

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
            aligned_rows(reading, tokens, mask, next(answers), vocabulary)
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
        assert self._servers is not None  # set by prepare
        return await self._servers.get_logprobs(
            input_ids=reading.tokens, top_k=self.settings.top_k, max_tokens=1, split="train"
        )

    async def _within_bound(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """The result of ``call``, again while no server answers, within ``timeout_s``."""
        last: InferenceUnavailable | None = None

        async def until_answered() -> T:
            nonlocal last
            while True:
                try:
                    return await self._unless_moved(call)
                except InferenceUnavailable as absence:
                    last = absence
                await asyncio.sleep(RETRY_PAUSE_S)

        timeout_s = self.settings.timeout_s
        task = asyncio.ensure_future(until_answered())
        try:
            done, _ = await asyncio.wait({task}, timeout=min(NAMED_AFTER_S, timeout_s))
            if not done and timeout_s > NAMED_AFTER_S:
                await self._wait_named(task, timeout_s - NAMED_AFTER_S, what)
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

    async def _wait_named(self, task: asyncio.Task[T], timeout_s: float, what: str) -> None:
        self._waiting += 1
        self.student.on_wait(f"{self.name}: {what}")
        try:
            await asyncio.wait({task}, timeout=timeout_s)
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


def _config(settings: TeacherSettings, url: str) -> APIServerConfig:
    return APIServerConfig(
        base_url=url,
        model_name=settings.model,
        server_type=settings.server_type,
        tokenizer_name=settings.tokenizer or "none",
        timeout=math.ceil(settings.timeout_s),
        num_max_requests_at_once=settings.requests_at_once,
        api_key=settings.api_key.get_secret_value(),
    )


def tokenizer_of(teacher: ServerBaseline) -> str:
    """The name of a teacher's tokenizer, by default that of its model."""
    named = teacher.tokenizer_name
    return teacher.model_name if named in ("", "none") else named
