"""Every call of the rollout API as a request and the parser of its answer. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pydantic import BaseModel

from atroposlib.client.groups import ACCEPT_FRAMES, FRAMES
from atroposlib.client.retry import ApiCall
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

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def read_claimed(response: httpx.Response) -> ClaimedBatch:
    """Decode a batch, or a shard of one, in either form."""
    if response.headers.get("content-type", "").partition(";")[0].strip() != FRAMES:
        return msgspec.json.decode(response.content, type=ClaimedBatch)
    from atroposlib.wire.binary import split_frames, unpack_group

    return ClaimedBatch(
        batch_no=int(response.headers.get("x-atropos-batch", "")),
        epoch=int(response.headers.get("x-atropos-epoch", "")),
        batch=[unpack_group(frame) for frame in split_frames(response.content)],
    )


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


# --- calls of trainers -------------------------------------------------------------------


def _post(
    path: str,
    body: BaseModel | None,
    read: Callable[[httpx.Response], T],
    timeout_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> ApiCall[T]:
    content = b"" if body is None else body.model_dump_json().encode()
    named = {"content-type": "application/json"} if content else {}
    return ApiCall("POST", path, read, content, {**named, **(headers or {})}, timeout_s)


def register(body: Registration) -> ApiCall[Registered]:
    return _post("/register", body, _as(Registered))


def claim(body: ClaimRequest, *, binary: bool, timeout_s: float) -> ApiCall[ClaimedBatch]:
    headers = ACCEPT_FRAMES if binary else {}
    return _post("/batches/claim", body, read_claimed, timeout_s + body.wait_s, headers)


def shard(
    batch_no: int, rank: int, *, generation: int, epoch: int, binary: bool
) -> ApiCall[ClaimedBatch]:
    path = f"/batches/{batch_no}/shards/{rank}?generation={generation}&epoch={epoch}"
    return ApiCall("GET", path, read_claimed, headers=ACCEPT_FRAMES if binary else {})


def ack(batch_no: int, body: AckRequest) -> ApiCall[bool]:
    return _post(f"/batches/{batch_no}/ack", body, lambda r: bool(_as_dict(r).get("first")))


def extend(batch_no: int, body: ExtendRequest) -> ApiCall[None]:
    return _post(f"/batches/{batch_no}/extend", body, _nothing)


def commit(batch_no: int, body: CheckpointRequest) -> ApiCall[Committed]:
    return _post(f"/batches/{batch_no}/commit", body, _as(Committed))


def rewind(batch_no: int, body: CheckpointRequest) -> ApiCall[Rewound]:
    return _post(f"/batches/{batch_no}/rewind", body, _as(Rewound))


def announce_version(version: int) -> ApiCall[None]:
    return _post("/policy_version", PolicyVersion(version=version), _nothing)


def reset() -> ApiCall[None]:
    return _post("/reset_data", None, _nothing)


# --- calls of environments -----------------------------------------------------------------


def wandb_info() -> ApiCall[dict[str, Any]]:
    return ApiCall("GET", "/wandb_info", _as_dict)


def info() -> ApiCall[dict[str, Any]]:
    return ApiCall("GET", "/info", _as_dict)


def register_env(body: RegisterEnv) -> ApiCall[EnvRegistered | None]:
    return _post("/register-env", body, _as_joined)


def status_env(who: EnvIdentifier) -> ApiCall[EnvStatus]:
    return _post("/status-env", who, _as(EnvStatus))


def status_env_by_get(who: EnvIdentifier) -> ApiCall[EnvStatus]:
    """The form of the original: a GET with a body."""
    body = who.model_dump_json(include={"env_id"}).encode()
    headers = {"content-type": "application/json"}
    return ApiCall("GET", "/status-env", _as(EnvStatus), body, headers)


def disconnect_env(who: EnvIdentifier) -> ApiCall[None]:
    return _post("/disconnect-env", who, _nothing, BEST_EFFORT_TIMEOUT_S)


def admit(body: AdmissionRequest) -> ApiCall[AdmissionReply]:
    return _post("/admission", body, _as(AdmissionReply))


def release_admission(admission_id: str) -> ApiCall[None]:
    body = AdmissionRelease(admission_id=admission_id)
    return _post("/admission/release", body, _nothing, BEST_EFFORT_TIMEOUT_S)


# --- calls of all ----------------------------------------------------------------------------


def heartbeat(beat: Heartbeat) -> ApiCall[None]:
    return _post("/heartbeat", beat, _nothing, BEST_EFFORT_TIMEOUT_S)


def status() -> ApiCall[RunStatus]:
    return ApiCall("GET", "/status", _as(RunStatus))


def health() -> ApiCall[None]:
    return ApiCall("GET", "/health", _nothing, timeout_s=BEST_EFFORT_TIMEOUT_S)
