"""Causes of failures: equality of causes, detection of mistakes, remedies.

    error --cause_of--> (type, line of the user's code or status, text without numbers)
          '-mistake_of-> the same, or None: an outage, which may end while the run waits

A mistake fails every sample in the same way, so a run whose first two items fail by a mistake
ends. Later in the run the first failure of each cause is logged in full, further failures are
counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from atroposlib.errors import (
    AtroposError,
    ConfigError,
    ContextFull,
    InferenceRefused,
    InferenceUnavailable,
    RolloutApiUnavailable,
    RolloutError,
    definition_of,
    user_line,
)
from atroposlib.utils.gathering import gather_bounded

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
PROBED_ITEMS = 2
LOG_INTERVAL_S = 30.0
PROGRESS_S = 10.0  # between two lines of an evaluation
_VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"")
_ABSENCES = (InferenceUnavailable, RolloutApiUnavailable, ConnectionError)
_OUTAGES = (*_ABSENCES, TimeoutError, asyncio.TimeoutError)


class OnlyFailures(AtroposError):
    """Too few items gave an accepted group; the message has the reasons."""

    after_log = ""  # the message after a log that has the cause already


class SameMistake(OnlyFailures):
    """The same mistake failed every sample of the first items; another start fails alike."""


class IncompleteGroup(AtroposError):
    """Too few samples of an item have a score; the cause is the last failure, if any.

    ``mistake`` is set if all samples failed by this cause.
    """

    def __init__(self, message: str, mistake: Cause | None = None) -> None:
        super().__init__(message)
        self.mistake = mistake


class Cause(NamedTuple):
    """Equal for failures that have the same origin."""

    kind: str  # type of the exception
    where: str  # a line of the user's code, the status of a server, or empty
    text: str  # message without numbers and quoted values


def returned_none(code: Callable[..., Any] | None, samples: int) -> IncompleteGroup:
    """The failure of a group all of whose samples are None."""
    where = definition_of(code)
    at, source = (f"{where}: ", where.source) if where else ("", "")
    return IncompleteGroup(
        f"{at}your function returned None: return a number{source} (0 of {samples} samples "
        "have a score)",
        Cause("None", str(where or ""), ""),
    )


def cause_of(error: AtroposError) -> Cause:
    inner = _inner(error)
    where = error.where if isinstance(error, RolloutError) else user_line(error)
    shown = str(inner.status_code) if isinstance(inner, InferenceRefused) else str(where or "")
    return Cause(type(inner).__name__, shown, comparable_text(str(inner)))


def comparable_text(text: str) -> str:
    """``text`` without numbers and quoted values, which differ between samples."""
    return _VARYING.sub("_", text)


def mistake_of(error: AtroposError) -> Cause | None:
    """The cause of ``error`` if another try cannot help; None for an outage."""
    if isinstance(error, IncompleteGroup):
        return error.mistake
    return None if is_outage(error) else cause_of(error)


def is_outage(error: BaseException | None) -> bool:
    """Whether an absent or overloaded server caused ``error``, also in the user's code."""
    while error is not None:
        reply = getattr(error, "response", None)
        status = getattr(error, "status_code", getattr(reply, "status_code", None))
        overloaded = isinstance(status, int) and (status in (408, 429) or status >= 500)
        named = re.search("Timeout|Connect", type(error).__name__)  # names in HTTP clients
        if overloaded or named or isinstance(error, _OUTAGES):
            return True
        error = error.__cause__
    return False


def is_infrastructure(error: AtroposError) -> bool:
    """Whether an absent server caused ``error``: waiting may help, a new item will not."""
    return isinstance(_inner(error), _ABSENCES)


def _inner(error: BaseException) -> BaseException:
    while isinstance(error, (IncompleteGroup, RolloutError)) and error.__cause__ is not None:
        error = error.__cause__
    return error


def describe_error(error: AtroposError) -> str:
    """Text of the failure and its place, on a single line."""
    where = user_line(error) if isinstance(error, ConfigError) else None
    return f"{where}: {error}{where.source}" if where else str(error)


def remedy_of(error: AtroposError) -> str:
    """Change that avoids the error."""
    inner = _inner(error)
    if isinstance(inner, ContextFull):
        return (
            "the first prompt of a rollout, with the tokens asked for, has to fit: shorten the "
            "task, lower --env.max_tokens, or start the server with a larger --max-model-len"
        )
    if isinstance(inner, InferenceRefused):
        reply = "the server's reply names what it does not accept"
        return _OF_STATUS.get(inner.status_code, reply)
    if isinstance(inner, IncompleteGroup):
        return "end the function with a return; None means that a sample has no score"
    if isinstance(inner, ConfigError):
        return "change it and start again"
    return "correct it and start again (-v shows the traceback)"


_OF_STATUS = {
    401: "set the server's key with --openai.api_key",
    403: "set a key that may use this model with --openai.api_key",
    404: "is it an inference server, and has it this model? Check --openai.base_url and "
    "--openai.model_name, or start one: atropos-infer --model DIR --port 9001",
}


@dataclass
class Repeats:
    """Log of failures: the first of each cause in full, then its count every 30 s at most."""

    clock: Callable[[], float] = time.monotonic  # seconds
    seen: Counter[tuple[str, ...]] = field(default_factory=Counter)
    logged_at: dict[tuple[str, ...], float] = field(default_factory=dict)

    def note(self, key: tuple[str, ...], text: str, error: AtroposError | None = None) -> None:
        """Count a failure. The traceback of ``error`` is logged at the level debug."""
        self.seen[key] += 1
        now, times = self.clock(), self.seen[key]
        if times == 1:
            shown = error if logger.isEnabledFor(logging.DEBUG) else None
            logger.warning("%s", text, exc_info=shown)
        elif now - self.logged_at[key] >= LOG_INTERVAL_S:
            logger.warning("%d times so far: %s", times, text)
        else:
            return
        self.logged_at[key] = now

    def count_error(self, error: AtroposError) -> None:
        self.note(cause_of(error), describe_error(error), error)


@dataclass
class FirstItems:
    """The first items of a run, by the order of their start."""

    ended: dict[int, Cause | None] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the probe is over: further items add no information."""
        return None in self.ended.values() or len(self.ended) >= PROBED_ITEMS

    def end(self, number: int, error: AtroposError | None) -> OnlyFailures | None:
        """Record how item ``number`` ended; return the end of the run, if it has to end."""
        if number >= PROBED_ITEMS or number in self.ended:
            return None
        self.ended[number] = None if error is None else mistake_of(error)
        causes = {*self.ended.values()}
        if len(self.ended) < PROBED_ITEMS or len(causes) > 1 or None in causes:
            return None
        return None if error is None else hopeless(error)


def hopeless(error: AtroposError) -> SameMistake:
    """The end of a run by a mistake in every sample."""
    failure = error.__cause__ if isinstance(error, IncompleteGroup) else error
    shown = failure if isinstance(failure, AtroposError) else error
    fix = f"all samples of the first {PROBED_ITEMS} items failed by this: {remedy_of(shown)}"
    ended = SameMistake(f"{describe_error(shown)}\n{fix}")
    # an incomplete group is not logged
    ended.after_log = "" if isinstance(shown, IncompleteGroup) else fix
    ended.__cause__ = shown
    return ended


async def gather_probed(
    samples: Sequence[T],
    item_of: Callable[[T], Any],
    work: Callable[[T], Awaitable[R]],
    error_of: Callable[[R], AtroposError | None],
    at_once: int,
) -> list[R]:
    """Results of ``work`` in order, progress logged; the first two items run alone, in turn.

    Raises OnlyFailures: the same mistake failed every sample of both.
    """
    probe, done = FirstItems(), list[R]()
    finished, logged_at = 0, time.monotonic()
    logger.info("evaluation of %d samples, %d at once", len(samples), at_once)

    async def count_errors(sample: T) -> R:
        nonlocal finished, logged_at
        result = await work(sample)
        finished += 1
        if time.monotonic() - logged_at >= PROGRESS_S:
            logged_at = time.monotonic()
            logger.info("evaluation: %d of %d samples finished", finished, len(samples))
        return result

    for number, (_, of_item) in enumerate(groupby(samples, item_of)):
        if probe.over:
            break
        drawn = await gather_bounded(of_item, count_errors, at_once)
        done += drawn
        errors = [error for error in map(error_of, drawn) if error is not None]
        alike = len(errors) == len(drawn) and len({*map(mistake_of, errors)}) == 1
        if ended := probe.end(number, errors[-1] if alike else None):
            raise ended
    return done + await gather_bounded(samples[len(done) :], count_errors, at_once)
