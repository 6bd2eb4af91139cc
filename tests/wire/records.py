"""A group with every kind of field, for the tests of the wire."""

from __future__ import annotations

import msgspec

from atroposlib.wire import ScoredData

GROUP = {
    "tokens": [[1, 5, 9], [2, 7]],
    "masks": [[-100, -100, 9], [-100, 7]],
    "scores": [0.1, -1],
    "inference_logprobs": [[1.0, 1.0, -0.5], [1.0, -0.25]],
    "versions": [[-1, -1, 3], [-1, 4]],
    "messages": [[], [{"role": "user", "content": "é[\\u005b"}]],
    "env_id": 3,
    "group_id": "g/1",
    "idempotency_key": "k",
}


def as_record(group):
    return msgspec.convert(group, ScoredData)


def group(**changes: object) -> ScoredData:
    fields: dict[str, object] = {
        "tokens": [[1, 5, 9], [1, 5, 7]],
        "masks": [[-100, -100, 9], [-100, -100, 7]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, 1.0, -0.2], [1.0, 1.0, -1.5]],
        "versions": [[-1, -1, 3], [-1, -1, 3]],
    }
    return ScoredData(**{**fields, **changes})  # type: ignore[arg-type]
