"""The tree of all errors that this package raises deliberately.

    AtroposError
    |-- ConfigError            a setting cannot be used            (also a ValueError)
    |-- InvalidGroup           a scored group breaks the record    (422; also a ValueError)
    |-- RunStateError          the run is not in a state for this call
    |   |-- NotRegistered      no trainer has registered yet       (409)
    |   |-- UnknownEnv         env id of another run, or of none   (404: register again)
    |   |-- UnknownGroup       the group or row is unknown, or its bytes are freed   (404)
    |   |-- UnknownSession     the proxy has no session of this id (404: open a new session)
    |   |-- StaleGeneration    a newer trainer or lease took over  (409: stop)
    |   |-- RunTaken           another trainer holds the run and is alive (409)
    |   |-- CannotRewind       the run has freed batches after a checkpoint (409)
    |   |-- KeyConflict        idempotency key reused for different content (409)
    |   `-- RunChanged         another call changed the run meanwhile  (look again; 503)
    |-- AccessError            the caller may not do this
    |   |-- Unauthorized       no token, or an unknown token        (401)
    |   |-- Forbidden          a token of another scope or env     (403)
    |   `-- TokensUnreadable   the file of tokens cannot be read   (503: wait)
    |-- StoreError             the queue cannot keep its promise
    |   |-- StoreFull          bound or disk reserve reached       (503: wait)
    |   |-- StoreLocked        another process owns the data directory
    |   `-- CorruptPayload     bytes read back differ from bytes acknowledged
    |-- RolloutApiError        seen by clients of the rollout API
    |   |-- RolloutApiUnavailable  no usable answer within the bound
    |   `-- RolloutApiRefused      a 4xx; a repeated request cannot help
    |-- InferenceError         seen by clients of an inference server
    |   |-- InferenceUnavailable   no usable answer within the bound
    |   |   `-- TeacherUnavailable the teacher gave no logprobs within the bound
    |   |-- InferenceRefused       a 4xx; a repeated request cannot help
    |   |   `-- ContextFull        the prompt leaves no space in the model's context
    |   `-- TokensMissing          the backend returned no token ids or logprobs
    |       `-- ForeignReply       a reply has another form; names address, route and field
    |-- RolloutError           user code failed; names env, item and stage
    |-- DatasetUnavailable     real data could not be loaded; never replaced by toy data
    |-- PictureError           a picture cannot be read, or does not fit its tokens  (also a ValueError)
    |-- CheckpointError        a checkpoint could not be written or read whole
    `-- WeightsError           new weights did not reach the servers whole
        |-- PublishFailed      a server refused or did not answer
        `-- StaleWeights       servers and trainer disagree on logprobs

Rules: the text of an error names the remedy. A failure is an exception or a typed outcome,
never a number. A broad ``except`` exists only inside :func:`boundary` and
:func:`surviving`.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class AtroposError(Exception):
    """Root of all errors of this package."""


class ConfigError(AtroposError, ValueError):
    """A setting cannot be used; the message names it and the accepted values."""


class InvalidGroup(AtroposError, ValueError):
    """A scored group breaks the record; nothing of it was stored.

    Carries ``field`` and ``index`` (like ``masks`` and ``[3]``) but never the values.
    """

    def __init__(self, field: str, index: str, problem: str) -> None:
        super().__init__(f"{field}{index}: {problem}")
        self.field = field
        self.index = index
        self.problem = problem


class Uncertified(InvalidGroup):
    """A claim of the certificate is refuted or absent, and the trainer registered ``refuse``.

    Send rows of a session of this release, or register ``require_certificate: warn``.
    """

    def __init__(self, claim: str, row: int, problem: str) -> None:
        super().__init__("certificate", f"[{row}]", f"{claim} is {problem}")
        self.claim = claim


class RunStateError(AtroposError):
    """The run is not in a state for this call."""


class NotRegistered(RunStateError):
    """No trainer has registered; POST /register first."""


class UnknownEnv(RunStateError):
    """The env id belongs to another run or to none; POST /register-env again."""


class UnknownGroup(RunStateError):
    """No group or row has this number, or its bytes are freed."""


class UnknownSession(RunStateError):
    """The proxy has no session of this id: never opened, closed, or idle for too long."""


class StaleGeneration(RunStateError):
    """A newer trainer generation or a later lease owns this batch; stop using it."""


class RunTaken(RunStateError):
    """Another trainer holds the run and is alive; stop it, or register with ``take_over``."""


class CannotRewind(RunStateError):
    """The run cannot be rewound to a checkpoint; its trainer was not registered."""


Fenced = StaleGeneration  # name in version 0.1


class KeyConflict(RunStateError):
    """An idempotency key came back with different content; use a fresh key."""


class RunChanged(RunStateError):
    """Another call changed the run between a read and a write; read it again."""


class AccessError(AtroposError):
    """The caller may not make this call."""


class Unauthorized(AccessError):
    """The bearer token is missing, unknown or expired."""


class Forbidden(AccessError):
    """The token is valid, but its scope or its environment does not cover this call."""


class TokensUnreadable(AccessError):
    """The token file cannot be read now, so no caller can be identified."""


class StoreError(AtroposError):
    """The queue cannot guarantee durability."""


class StoreFull(StoreError):
    """More groups would exceed the byte bound or the free-space reserve; retry later."""


class StoreLocked(StoreError):
    """Another process owns the data directory; stop it or choose another directory."""


class CorruptPayload(StoreError):
    """Stored payloads no longer match their digests; they are never delivered."""

    def __init__(self, gids: Sequence[int]) -> None:
        named = ", ".join(str(gid) for gid in gids[:8])
        super().__init__(f"group {named} no longer matches its digest; it is not delivered")
        self.gids = tuple(gids)


class RolloutApiError(AtroposError):
    """A call to the rollout API did not succeed."""


class RolloutApiUnavailable(RolloutApiError):
    """The rollout API gave no usable answer within the bound of the wait."""


class RolloutApiRefused(RolloutApiError):
    """The rollout API answered 4xx: the same request can never succeed."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(f"rollout API refused ({status_code}): {detail}")
        self.status_code = status_code
        self.detail = detail


class InferenceError(AtroposError):
    """A call to an inference server did not succeed."""


class InferenceUnavailable(InferenceError):
    """No inference server gave a usable answer within the bound of the wait."""


class TeacherUnavailable(InferenceUnavailable):
    """The teacher of an environment gave no logprobs within ``env.teacher.timeout_s``."""


class InferenceRefused(InferenceError):
    """The inference server answered 4xx: the same request can never succeed."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(f"inference server refused ({status_code}): {detail}")
        self.status_code = status_code
        self.detail = detail


class ContextFull(InferenceRefused):
    """The prompt, with the tokens asked for, does not fit into the context of the model.

    The earlier text of the policy decides the length, so this is an outcome of a rollout and
    no outage.
    """


class TokensMissing(InferenceError):
    """The backend returned no token ids or logprobs, so its text cannot be trained on."""


class ForeignReply(TokensMissing):
    """A field of a server's reply has another form than its route promises.

    Args:
        where: address and route, like ``http://localhost:9001/v1/chat/completions``.
        field: place of the value, like ``choices[0].message``.
        shape: what the value is; its content is left out.
        wanted: what the route promises.
    """

    def __init__(self, where: str, field: str, shape: str, wanted: str) -> None:
        super().__init__(
            f"{where}: the response has another form than that of this server_type: {field} is "
            f"{shape}, not {wanted}; set server_type to the kind of this server, or base_url to "
            "another"
        )
        self.where = where
        self.field = field
        self.wanted = wanted


_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_EXAMPLES = os.path.join(_OURS, "environments", "")  # read, copied and changed by users
_LIBRARIES = (_OURS, os.path.join(os.path.dirname(os.__file__), ""), "<")
MAX_TEXT_CHARS = 300  # limit of a cause or a source line in a message


class SourceLine(NamedTuple):
    """A line of the user's code, like ``wordle.py:31``; the path is relative if shorter."""

    file: str
    line: int

    def __str__(self) -> str:
        near = os.path.relpath(self.file)
        return f"{self.file if near.startswith(os.pardir) else near}:{self.line}"

    @property
    def source(self) -> str:
        """The text of the line, quoted; empty if the file cannot be read."""
        text = linecache.getline(self.file, self.line).strip()[:MAX_TEXT_CHARS]
        return f", in `{text}`" if text else ""


def user_line(error: BaseException) -> SourceLine | None:
    """The last line of the traceback outside of this package and of libraries."""
    place, step = None, error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if is_users(file):
            place = SourceLine(file, step.tb_lineno)
        step = step.tb_next
    return place


def is_users(file: str) -> bool:
    """Whether ``file`` is neither this package nor a library; examples are the user's."""
    installed = "site-packages" in file or "dist-packages" in file
    return file.startswith(_EXAMPLES) or not (file.startswith(_LIBRARIES) or installed)


def definition_of(function: Any) -> SourceLine | None:
    """The ``def`` line of a user's function; None for functions of libraries."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return None
    first = line = int(code.co_firstlineno)  # a decorated function begins at its decorator
    text = linecache.getline(code.co_filename, line)
    while text and not text.lstrip().startswith(("def ", "async def ")):
        line += 1
        text = linecache.getline(code.co_filename, line)
    return SourceLine(code.co_filename, line if text else first)


class RolloutError(AtroposError):
    """User code failed inside a rollout; names file, line, env, item and stage.

    ``where`` is the line of the user's code, if known.
    """

    def __init__(
        self,
        env: str,
        item: str,
        stage: str,
        cause: BaseException,
        where: SourceLine | None = None,
    ) -> None:
        self.where = where = user_line(cause) or where
        text = " ".join(str(cause).split())[:MAX_TEXT_CHARS]
        what = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
        step = f"{env}: {stage} failed" + (f" on item {item}" if item != "None" else "")
        super().__init__(
            f"{where}: {what}{where.source} ({step})" if where else f"{step}: {what}"
        )
        self.env = env
        self.item = item
        self.stage = stage


class DatasetUnavailable(AtroposError):
    """Real data could not be loaded; the message names the option for a local file."""


class PictureError(AtroposError, ValueError):
    """A picture cannot be read, or does not fit the placeholder tokens of its sequence."""


class CheckpointError(AtroposError):
    """A checkpoint could not be written, or not read back whole; the message names it."""


class OutOfDeviceMemory(AtroposError):
    """A GPU has too little memory for these settings; the message names smaller settings."""


class RankLost(AtroposError):
    """Another rank of the trainer ended, or did not reach a common step in time."""


class WeightsError(AtroposError):
    """New weights did not reach every server whole."""


class PublishFailed(WeightsError):
    """A server refused the new weights or did not answer; servers stay paused."""


class StaleWeights(WeightsError):
    """Servers and trainer give different logprobs to the same tokens at the same version."""


@contextmanager
def boundary(
    env: str, item: Any, stage: str, code: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Convert all exceptions of user code to a :class:`RolloutError` with item and stage.

    Errors of this package pass unchanged. ``code`` is the user's function that is to blame
    where the traceback holds no line of the user.
    """
    try:
        yield
    except AtroposError:
        raise
    except Exception as cause:  # broad: user code may raise anything
        raise RolloutError(env, repr(item)[:200], stage, cause, definition_of(code)) from cause


@contextmanager
def surviving(report: Callable[[Exception], object]) -> Iterator[None]:
    """Pass an exception to ``report``, and go on after it.

    A background thread that ends by a bug would leave its work undone for good, and nothing would
    show it. A request that ends by a bug is answered 500 and recorded.
    """
    try:
        yield
    except Exception as bug:  # broad, as the kinds of bugs are unknown
        report(bug)
