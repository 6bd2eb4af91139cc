"""Process that calls a reward: chunks of arguments come in, an outcome per rollout goes out.

    parent --[values, ...]--> process --(place, score, kind, text)--> parent

A plain function is called rollout after rollout, each under an alarm; an async function runs for
``CONCURRENT`` rollouts at a time. The process ends when the parent closes the connection.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import msgspec

from atroposlib.errors import ConfigError, RolloutError
from atroposlib.travel.stored_reward import StoredReward, failure_kind, load_stored_reward

CONCURRENT = 16  # calls of an async reward at a time
MAX_TEXT = 300  # characters of a failure
TIMEOUT = "timeout"
NO_SCORE = "no score"
MISSING = "missing argument"
READY = "ready"
Values = dict[str, Any]


class RewardOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Result of a call: a score, or the kind and the text of a failure."""

    place: int  # index in the chunk
    score: float | None
    kind: str = ""
    text: str = ""


class RewardTimeout(BaseException):
    """The time of a rollout is over; no ``except Exception`` of a reward hides it."""


def serve_outcomes(connection: Connection, name: str, timeout_s: float) -> None:
    """Serve outcomes until the parent closes the connection; the first message is ``READY``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends
    signal.signal(signal.SIGALRM, _raise_timeout)
    try:
        reward = load_stored_reward(name)
    except ConfigError as error:
        connection.send_bytes(str(error).encode())
        return
    connection.send_bytes(READY.encode())
    decode = msgspec.json.Decoder(list[Values]).decode
    encode = msgspec.msgpack.Encoder().encode

    def send(outcome: RewardOutcome) -> None:
        connection.send_bytes(encode(outcome))

    with suppress(EOFError, BrokenPipeError):
        while True:
            chunk = decode(connection.recv_bytes())
            if reward.is_async:
                asyncio.run(_score_together(reward, chunk, timeout_s, send))
            else:
                for place, values in enumerate(chunk):
                    send(plain_outcome(reward, place, values, timeout_s))


def plain_outcome(
    reward: StoredReward, place: int, values: Values, timeout_s: float
) -> RewardOutcome:
    """The outcome of a plain function, within its time."""
    if missing := reward.missing(values):
        return RewardOutcome(place, None, MISSING, ", ".join(missing)[:MAX_TEXT])
    try:
        with alarm(timeout_s):
            score = reward.score(reward.call(values))
    except RewardTimeout:
        return _timeout(place, timeout_s)
    except RolloutError as error:
        return RewardOutcome(place, None, failure_kind(error), str(error)[:MAX_TEXT])
    return RewardOutcome(place, score, "" if score is not None else NO_SCORE)


async def async_outcome(
    reward: StoredReward, place: int, values: Values, timeout_s: float
) -> RewardOutcome:
    """The outcome of an async function, within its time."""
    if missing := reward.missing(values):
        return RewardOutcome(place, None, MISSING, ", ".join(missing)[:MAX_TEXT])
    try:
        score = reward.score(await reward.call_async(values, timeout_s))
    except RolloutError as error:
        if isinstance(error.__cause__, asyncio.TimeoutError):
            return _timeout(place, timeout_s)
        return RewardOutcome(place, None, failure_kind(error), str(error)[:MAX_TEXT])
    return RewardOutcome(place, score, "" if score is not None else NO_SCORE)


async def _score_together(
    reward: StoredReward,
    chunk: Sequence[Values],
    timeout_s: float,
    send: Callable[[RewardOutcome], None],
) -> None:
    free = asyncio.Semaphore(CONCURRENT)

    async def score(place: int, values: Values) -> None:
        async with free:
            send(await async_outcome(reward, place, values, timeout_s))

    await asyncio.gather(*(score(place, values) for place, values in enumerate(chunk)))


@contextmanager
def alarm(timeout_s: float) -> Iterator[None]:
    """Raise :class:`RewardTimeout` in the block after ``timeout_s``. Main thread only."""
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _raise_timeout(number: int, frame: FrameType | None) -> None:
    raise RewardTimeout


def _timeout(place: int, timeout_s: float) -> RewardOutcome:
    return RewardOutcome(place, None, TIMEOUT, f"no result after {timeout_s:g} s")
