"""The tree of all errors that this package raises deliberately.

    AtroposError
    |-- ConfigError            a setting cannot be used            (also a ValueError)
    |-- InvalidGroup           a scored group breaks the record    (422; also a ValueError)
    |-- RunStateError          the run is not in a state for this call
    |   |-- NotRegistered      no trainer has registered yet       (409)
    |   |-- UnknownEnv         env id of another run, or of none   (404: register again)
    |   |-- UnknownSession     no such session of a proxy          (404: open another)
    |   |-- StaleGeneration    a newer trainer or lease took over  (409: stop)
    |   |-- KeyConflict        idempotency key reused for other content (409)
    |   `-- RunChanged         another call changed the run meanwhile  (look again; 503)
    |-- AccessError            the caller may not do this
    |   |-- Unauthorized       no token, or an unknown one          (401)
    |   |-- Forbidden          a token of another scope or env     (403)
    |   `-- TokensUnreadable   the file of tokens cannot be read   (503: wait)
    |-- StoreError             the queue cannot keep its promise
    |   |-- StoreFull          bound or disk reserve reached       (503: wait)
    |   |-- StoreLocked        another process owns the data directory
    |   `-- CorruptPayload     bytes read back differ from bytes acknowledged
    |-- RolloutApiError        seen by clients of the rollout API
    |   |-- RolloutApiUnavailable  no usable answer within the bound
    |   `-- RolloutApiRefused      a 4xx; sending the same again cannot help
    |-- InferenceError         seen by clients of an inference server
    |   |-- InferenceUnavailable   no usable answer within the bound
    |   |-- InferenceRefused       a 4xx; sending the same again cannot help
    |   `-- TokensMissing          the backend returned no token ids or logprobs
    |-- RolloutError           user code failed; names env, item and stage
    |-- DatasetUnavailable     real data could not be loaded; never replaced by toy data
    |-- CheckpointError        a checkpoint could not be written or read whole
    `-- WeightsError           new weights did not reach the servers whole
        |-- PublishFailed      a server refused or did not answer
        `-- StaleWeights       servers and trainer disagree on logprobs

Rules: the text of an error names the remedy. A failure is an exception or a typed outcome,
never a number. A broad ``except`` exists only inside :func:`boundary`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class AtroposError(Exception):
    """Root of all errors of this package."""


class ConfigError(AtroposError, ValueError):
    """A setting cannot be used; the message names it and the accepted values."""


class InvalidGroup(AtroposError, ValueError):
    """A scored group breaks the record; nothing of it was stored.

    Carries ``field`` and ``index`` (such as ``masks`` and ``[3]``) but never the values.
    """

    def __init__(self, field: str, index: str, problem: str) -> None:
        super().__init__(f"{field}{index}: {problem}")
        self.field = field
        self.index = index
        self.problem = problem


class RunStateError(AtroposError):
    """The run is not in a state for this call."""


class NotRegistered(RunStateError):
    """No trainer has registered; POST /register first."""


class UnknownEnv(RunStateError):
    """The env id belongs to another run or to none; POST /register-env again."""


class UnknownSession(RunStateError):
    """The proxy has no such session: never opened, closed, or idle for too long."""


class StaleGeneration(RunStateError):
    """A newer trainer generation or a later lease owns this batch; stop using it."""


Fenced = StaleGeneration  # name in version 0.1


class KeyConflict(RunStateError):
    """An idempotency key came back with other content; use a fresh key."""


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


class InferenceRefused(InferenceError):
    """The inference server answered 4xx: the same request can never succeed."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(f"inference server refused ({status_code}): {detail}")
        self.status_code = status_code
        self.detail = detail


class TokensMissing(InferenceError):
    """The backend returned no token ids or logprobs, so its text cannot be trained on."""


class RolloutError(AtroposError):
    """User code failed inside a rollout; the message names env, item and stage."""

    def __init__(self, env: str, item: str, stage: str, cause: BaseException) -> None:
        super().__init__(
            f"{env}: {stage} failed on item {item}: {type(cause).__name__}: {cause}"
        )
        self.env = env
        self.item = item
        self.stage = stage


class DatasetUnavailable(AtroposError):
    """Real data could not be loaded; the message names the option for a local file."""


class CheckpointError(AtroposError):
    """A checkpoint could not be written, or not read back whole; the message names it."""


class RankLost(AtroposError):
    """Another rank of the trainer ended, or did not reach a common step in time."""


class WeightsError(AtroposError):
    """New weights did not reach every server whole."""


class PublishFailed(WeightsError):
    """A server refused the new weights or did not answer; servers stay paused."""


class StaleWeights(WeightsError):
    """Servers and trainer give different logprobs to the same tokens at one version."""


@contextmanager
def boundary(env: str, item: Any, stage: str) -> Iterator[None]:
    """Convert all exceptions of user code to a :class:`RolloutError` with item and stage.

    Errors of this package pass unchanged.
    """
    try:
        yield
    except AtroposError:
        raise
    except Exception as cause:  # the one broad except: user code may raise anything
        raise RolloutError(env, repr(item)[:200], stage, cause) from cause
