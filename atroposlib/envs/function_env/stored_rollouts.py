"""Stored form of a rollout of a function, for the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from atroposlib.envs.function_env.recorder import Rollout
from atroposlib.envs.journal.stored_samples import encode_value
from atroposlib.envs.rollout.groups import score_problem
from atroposlib.generation.sessions.sequences import Node


class RolloutForm:
    """A rollout as MessagePack: rows of each endpoint with their sampling, reward and facts."""

    def pack_sample(self, value: Rollout, nodes: Sequence[Node]) -> bytes | None:
        score = value.reward.score
        if score is None or score_problem({"scores": score}) is not None:
            return None
        return encode_value(value)

    def unpack_sample(self, data: bytes) -> Rollout:
        return msgspec.msgpack.decode(data, type=Rollout)

    def versions(self, value: Rollout) -> Iterable[int]:
        seats = [value.rows, *(seat.rows for seat in value.seats.values())]
        return {
            version for rows in seats for row in rows for version in row.get("versions") or ()
        }
