"""The environment under validation: its tasks with gold replies, and rollouts of given replies."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from atroposlib.envs.function_env.card import Card, Replies, card_of
from atroposlib.envs.function_env.env import FunctionEnv
from atroposlib.envs.runtime.env_runtime import runtime_of
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.validation.classes import ALONE, ClassRollouts, items_of, open_case
from atroposlib.validation.report import Proof
from atroposlib.validation.sessions import (
    Hanging,
    RecordingSession,
    ScriptedServer,
    interrupted_after,
)

MOST_ITEMS = 2000  # read for the comparison of trained and held-out tasks
MOST_CASES, LEAST_CASES = 64, 8
CASES_S = 15.0  # time after which no more than LEAST_CASES are read
SETUP_S = 300.0
PLAY_S = 10.0  # limit of a rollout with given replies
FIRST_S = 60.0  # limit of the first rollout of a class, which may import packages
SLOW_S = 0.1  # slower rollouts reduce the number of tasks
LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")


@dataclass(frozen=True)
class Try:
    """A rollout to be played: the case, its replies, and their name in the report."""

    case: Case
    replies: Replies
    what: str = ""


@dataclass(frozen=True)
class Played(Try):
    """Outcome of a try."""

    score: float | None = None
    error: str = ""
    requests: Sequence[Sequence[Mapping[str, Any]]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    seconds: float = 0.0
    hangs: bool = False

    def evidence(self, note: str = "") -> Proof:
        reply = self.replies if isinstance(self.replies, str) else " | ".join(self.replies)
        return Proof(self.case.id, reply, self.score, note or self.error or self.what)


@dataclass(frozen=True)
class Case:
    """A task, its gold replies of each turn (empty: none) and the first messages it sends."""

    id: str
    item: Any
    gold: Sequence[str] = ()
    asked: Sequence[Mapping[str, Any]] = ()

    @property
    def prompt(self) -> str:
        return "\n".join(text_of(message) for message in self.asked)

    def ending(self, reply: str) -> list[str]:
        """The gold replies with another last reply."""
        return [*self.gold[:-1], reply]


@dataclass
class Subject:
    """Environment, settings, tasks, and every rollout that was played so far."""

    env: Any
    card: Card | None
    rollouts: Any  # given(item, session) -> (reward, ...): of a function, or of a class
    # Checks that do not apply to this kind of environment, with the reason.
    left_out: Mapping[str, str] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)  # items of the first pass over the data
    played: list[Played] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # addresses that were asked for

    @property
    def floor(self) -> float:
        return self.card.floor if self.card else 0.0

    @property
    def best(self) -> float:
        return self.card.best if self.card else 1.0

    @property
    def of_class(self) -> bool:
        return isinstance(self.rollouts, ClassRollouts)

    @property
    def pace_s(self) -> float:
        """Seconds of a rollout: the mean of the played rollouts."""
        return sum(outcome.seconds for outcome in self.played) / max(1, len(self.played))

    @property
    def slow_s(self) -> float:
        """Seconds of a slow rollout, which reduces the number of rollouts; otherwise 0."""
        return self.pace_s if self.pace_s > SLOW_S else 0.0

    @property
    def golden(self) -> list[Case]:
        return [case for case in self.cases if case.gold]

    def few(self, most: int) -> int:
        """``most`` tasks, or fewer where a rollout takes long."""
        if not self.slow_s:
            return most
        return max(3 if self.pace_s < 1 else 2, int(most * SLOW_S / self.pace_s))

    async def play(
        self, attempt: Try, session: RecordingSession | None = None, limit_s: float = PLAY_S
    ) -> Played:
        """Play a rollout within ``limit_s``; errors of the environment are part of the outcome."""
        session = session or RecordingSession(attempt.replies)
        started, score, error, hangs = time.monotonic(), None, "", False
        try:
            with interrupted_after(limit_s + 1):
                rollout = self.rollouts.given(attempt.case.item, session)
                reward, _ = await asyncio.wait_for(rollout, limit_s)
                score = reward.score
        except AtroposError as failure:
            error = str(failure)
        except (Hanging, asyncio.TimeoutError):
            error, hangs = f"no end within {limit_s:.0f} s", True
        seconds = time.monotonic() - started
        played = Played(
            **vars(attempt),
            score=score,
            error=error,
            requests=session.requests,
            tools=session.tools,
            seconds=seconds,
            hangs=hangs,
        )
        self.played.append(played)
        return played

    async def play_all(self, tries: Sequence[Try]) -> list[Played]:
        """Play the tries in order; end after the first rollout that hangs."""
        outcomes: list[Played] = []
        for attempt in tries:
            outcomes.append(await self.play(attempt))
            if outcomes[-1].hangs:
                break
        return outcomes


async def prepare(env_cls: Any, settings: Any, cases: int | None = None) -> Subject:
    """Set the environment up with a scripted server, and read its tasks, at most ``cases``.

    Raises:
        ConfigError: its settings are wrong, or it has no tasks.
        AtroposError: its setup failed.
    """
    refused: list[str] = []
    with no_network(refused):
        subject = await create_environment(env_cls, settings)
        subject.refused = refused
        with boundary(runtime_of(subject.env).label(), None, "setup"):
            await asyncio.wait_for(subject.env.setup(), SETUP_S)
    if subject.of_class:
        subject.items = await items_of(subject.env)
    else:
        subject.items = [item async for item in first_pass(subject.env)]
    if not subject.items:
        raise ConfigError(f"{runtime_of(subject.env).label()}: there is no task")
    if subject.of_class:
        bare = Case(subject.items[0]["id"], subject.items[0])
        if not (await subject.play(Try(bare, ""), limit_s=FIRST_S)).hangs:
            subject.played.clear()
    started = time.monotonic()
    for item in itertools.islice(subject.items, cases or MOST_CASES):
        late = cases is None and time.monotonic() - started > CASES_S
        if late and len(subject.cases) >= LEAST_CASES:
            break
        subject.cases.append(await case_of(subject, item))
    return subject


async def create_environment(env_cls: Any, settings: Any) -> Subject:
    """The environment with given replies in place of a model."""
    from atroposlib.envs.runtime.creation import make_env

    card = card_of(env_cls)
    if issubclass(env_cls, FunctionEnv):
        server: Any = ScriptedServer()
        env: Any = make_env(env_cls, settings, server, tokenizer=object())
        return Subject(env, card, env.rollouts, {"score.group": ALONE})
    env = await open_case(env_cls, settings)
    rollouts = ClassRollouts(env, card)
    return Subject(env, card, rollouts, rollouts.left_out)


async def first_pass(env: Any) -> AsyncIterator[Any]:
    for _ in range(MOST_ITEMS):
        item = await env.get_next_item()
        if item is None or item["epoch"] > 0:
            return
        yield item


async def case_of(subject: Subject, item: Any) -> Case:
    """The case of an item: gold replies, and the messages of a rollout with an empty reply."""
    gold: Replies = ()
    if subject.card is not None:
        with boundary(runtime_of(subject.env).label(), item["id"], "gold", subject.card.gold):
            gold = subject.card.gold(item["task"])
    golds = (gold,) if isinstance(gold, str) else tuple(gold)
    bare = Case(item["id"], item, golds)
    requests = (await subject.play(Try(bare, ""))).requests
    return Case(item["id"], item, golds, requests[0] if requests else ())


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)


@contextmanager
def no_network(refused: list[str]) -> Iterator[None]:
    """Refuse connections of this process to remote machines, and list their addresses."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def refuse(host: Any) -> None:
        if isinstance(host, str) and not host.startswith(LOOPBACK):
            refused.append(host)
            raise ConnectionRefusedError(f"validate refuses a connection to {host}")

    def checked_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            refuse(address[0])
        connect(self, address)

    def checked_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(host)
        return resolve(host, *args, **kwargs)

    socket.socket.connect = checked_connect  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = checked_resolve
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]
        socket.getaddrinfo = resolve
