"""Every verb of the rollout API as a request and the reading of its answer. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel

from atroposlib.client.groups import ACCEPT_FRAMES, read_claimed
from atroposlib.client.retry import Postponed
from atroposlib.errors import (
    Forbidden,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    StaleGeneration,
    Unauthorized,
    UnknownEnv,
)
from atroposlib.wire import (
    AckRequest,
    AdmissionRelease,
    AdmissionReply,
    AdmissionRequest,
    CheckpointRequest,
    ClaimedBatch,
    ClaimRequest,
    Committed,
    EnvIdentifier,
    EnvRegistered,
    EnvStatus,
    ExtendRequest,
    Heartbeat,
    PolicyVersion,
    Registered,
    RegisterEnv,
    Registration,
    Rewound,
    RunStatus,
)

if TYPE_CHECKING:
    import httpx

BEST_EFFORT_TIMEOUT_S = 2.0
_MOST_DETAIL_CHARACTERS = 500

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, ready to be sent any number of times, and what its answer means."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]  # ValueError: the body is not what was promised
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None  # None: the client's own


# --- answers -------------------------------------------------------------------------


def settle(call: Call[T], response: httpx.Response) -> T | Postponed:
    """What an answer means for the caller.

    Raises:
        UnknownEnv, StaleGeneration, NotRegistered, KeyConflict, Unauthorized, Forbidden: says the API.
        RolloutApiRefused: any other answer that sending again cannot change.
    """
    code = response.status_code
    if code in (408, 429) or code >= 500:  # 408: the network was slow, not the group bad
        _, detail = status_and_detail(response)
        asked = response.headers.get("retry-after", "") if code == 429 else ""
        at_least_s = float(asked) if asked.isascii() and asked.isdecimal() else 0.0
        return Postponed(f"HTTP {code} {detail}".rstrip(), at_least_s)
    if not response.is_success:
        raise refusal_of(response)
    try:
        return call.read(response)
    except ValueError as error:
        problem = f"its answer to {call.path} is not one of a rollout API"
        raise RolloutApiRefused(code, problem) from error


def refusal_of(response: httpx.Response) -> Exception:
    """The error that an answer of 3xx or 4xx stands for."""
    code = response.status_code
    status, detail = status_and_detail(response)
    if code == 401:
        return Unauthorized(f"{detail}: set ATROPOS_API_TOKEN, or pass a token")
    if code == 403:
        return Forbidden(detail)
    if code == 404 and status == "unknown_env":
        return UnknownEnv(detail)
    if code == 409:
        if status == "key_conflict":
            return KeyConflict(detail)
        if status == "not_registered":
            return NotRegistered(f"{detail} (the run was reset, or never began)")
        return StaleGeneration(f"{detail}: stop, or register again to take the run over")
    if response.is_redirect:
        detail = "it answers with a redirect, which is not followed: use the final URL"
    return RolloutApiRefused(code, detail)


def status_and_detail(response: httpx.Response) -> tuple[str, str]:
    try:
        body = msgspec.json.decode(response.content, type=dict[str, Any])
    except ValueError:
        return "", response.text[:_MOST_DETAIL_CHARACTERS]
    detail = str(body.get("detail", ""))[:_MOST_DETAIL_CHARACTERS]
    return str(body.get("status", "")), detail


def _as(model: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _as_dict(response: httpx.Response) -> dict[str, Any]:
    return msgspec.json.decode(response.content, type=dict[str, Any])


def _as_joined(response: httpx.Response) -> EnvRegistered | None:
    if "env_id" not in _as_dict(response):
        return None
    return EnvRegistered.model_validate_json(response.content)


def _nothing(response: httpx.Response) -> None:
    return None


# --- what a trainer says -----------------------------------------------------------------


def _post(
    path: str,
    body: BaseModel | None,
    read: Callable[[httpx.Response], T],
    timeout_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> Call[T]:
    content = b"" if body is None else body.model_dump_json().encode()
    named = {"content-type": "application/json"} if content else {}
    return Call("POST", path, read, content, {**named, **(headers or {})}, timeout_s)


def register(body: Registration) -> Call[Registered]:
    return _post("/register", body, _as(Registered))


def claim(body: ClaimRequest, *, binary: bool, timeout_s: float) -> Call[ClaimedBatch]:
    headers = ACCEPT_FRAMES if binary else {}
    return _post("/batches/claim", body, read_claimed, timeout_s + body.wait_s, headers)


def shard(
    batch_no: int, rank: int, *, generation: int, epoch: int, binary: bool
) -> Call[ClaimedBatch]:
    path = f"/batches/{batch_no}/shards/{rank}?generation={generation}&epoch={epoch}"
    return Call("GET", path, read_claimed, headers=ACCEPT_FRAMES if binary else {})


def ack(batch_no: int, body: AckRequest) -> Call[bool]:
    return _post(f"/batches/{batch_no}/ack", body, lambda r: bool(_as_dict(r).get("first")))


def extend(batch_no: int, body: ExtendRequest) -> Call[None]:
    return _post(f"/batches/{batch_no}/extend", body, _nothing)


def commit(batch_no: int, body: CheckpointRequest) -> Call[Committed]:
    return _post(f"/batches/{batch_no}/commit", body, _as(Committed))


def rewind(batch_no: int, body: CheckpointRequest) -> Call[Rewound]:
    return _post(f"/batches/{batch_no}/rewind", body, _as(Rewound))


def announce_version(version: int) -> Call[None]:
    return _post("/policy_version", PolicyVersion(version=version), _nothing)


def reset() -> Call[None]:
    return _post("/reset_data", None, _nothing)


# --- what an environment says --------------------------------------------------------------


def wandb_info() -> Call[dict[str, Any]]:
    return Call("GET", "/wandb_info", _as_dict)


def info() -> Call[dict[str, Any]]:
    return Call("GET", "/info", _as_dict)


def register_env(body: RegisterEnv) -> Call[EnvRegistered | None]:
    return _post("/register-env", body, _as_joined)


def status_env(who: EnvIdentifier) -> Call[EnvStatus]:
    return _post("/status-env", who, _as(EnvStatus))


def status_env_by_get(who: EnvIdentifier) -> Call[EnvStatus]:
    """As the original asks: a GET with a body."""
    body = who.model_dump_json(include={"env_id"}).encode()
    headers = {"content-type": "application/json"}
    return Call("GET", "/status-env", _as(EnvStatus), body, headers)


def disconnect_env(who: EnvIdentifier) -> Call[None]:
    return _post("/disconnect-env", who, _nothing, BEST_EFFORT_TIMEOUT_S)


def admit(body: AdmissionRequest) -> Call[AdmissionReply]:
    return _post("/admission", body, _as(AdmissionReply))


def release_admission(admission_id: str) -> Call[None]:
    body = AdmissionRelease(admission_id=admission_id)
    return _post("/admission/release", body, _nothing, BEST_EFFORT_TIMEOUT_S)


# --- what anybody says -----------------------------------------------------------------------


def heartbeat(beat: Heartbeat) -> Call[None]:
    return _post("/heartbeat", beat, _nothing, BEST_EFFORT_TIMEOUT_S)


def status() -> Call[RunStatus]:
    return Call("GET", "/status", _as(RunStatus))


def health() -> Call[None]:
    return Call("GET", "/health", _nothing, timeout_s=BEST_EFFORT_TIMEOUT_S)
