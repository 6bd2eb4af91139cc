"""A checked group on its way to the store, and the two ways a body can be refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from atroposlib.api.common.records import Media
from atroposlib.api.common.store_protocol import digest_of
from atroposlib.errors import InvalidGroup
from atroposlib.wire.columns import Columns

# What the API lets pass and writes into the group: its ``advantages`` do not fit its tokens.
ADVANTAGES_LENGTH = "advantages_length"


class MalformedBody(ValueError):
    """The body is not of the format it claims to be, so no field of it can be named."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """What the queue must know of one group, and the bytes under which it is kept."""

    payload: bytes
    media: Media
    n_seq: int
    n_tokens: int  # trained positions
    env_id: int | None = None
    key: str | None = None  # idempotency key
    version: int | None = None  # oldest policy version that sampled one of its tokens
    declared_size: int | None = None  # group_overrides["group_size"], if it is an int
    marks: tuple[str, ...] = ()
    digest: bytes = field(init=False)  # of the payload; made here, off the event loop

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.payload))


def incoming_of(
    columns: Columns, payload: bytes, media: Media, key: str | None, marks: tuple[str, ...]
) -> Incoming:
    """A checked group; ``key`` counts if it names none itself."""
    own = columns.idempotency_key
    return Incoming(
        payload=payload,
        media=media,
        n_seq=len(columns.seq_lens),
        n_tokens=columns.n_tokens,
        env_id=columns.env_id,
        key=key if own is None else own,
        version=columns.version,
        declared_size=columns.declared_size,
        marks=marks,
    )


def marks_of(columns: Columns) -> tuple[str, ...]:
    """The oddities that are let pass: advantages in ``rest`` are those that do not fit."""
    return (ADVANTAGES_LENGTH,) if "advantages" in columns.rest else ()


def placed(error: InvalidGroup, place: str) -> InvalidGroup:
    """The same refusal, found inside a list of groups at ``place`` such as ``[3].``."""
    return InvalidGroup(place + error.field, error.index, error.problem)
