"""Numbers as JSON text that a typed border has to bound: beyond 64 bits, beyond a double."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

ODD = (
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "2147483648",
    "-1",
    "1" + "0" * 400,
    "-1" + "0" * 400,
    "7" * 5000,
    "1e308",
    "1e999",
    "-1e999",
    "5e-324",
    "0.5",
    "1." + "3" * 400,
    "-0.0",
)
numbers = st.one_of(
    st.sampled_from(ODD),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(60, 450).map(lambda digits: "9" * digits),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
_PLACE = "\x00number"


def places(body: Any) -> list[tuple[Any, ...]]:
    """The path of each number in a JSON value."""
    if isinstance(body, dict):
        return [(key, *path) for key, value in body.items() for path in places(value)]
    if isinstance(body, list):
        return [(at, *path) for at, value in enumerate(body) for path in places(value)]
    return [()] if isinstance(body, (int, float)) and not isinstance(body, bool) else []


def with_number(body: Any, path: tuple[Any, ...], number: str) -> str:
    """The JSON text of ``body`` with a number, written as it is, at ``path``."""
    return json.dumps(_placed(body, path)).replace(json.dumps(_PLACE), number)


def _placed(body: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return _PLACE
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[path[0]] = _placed(copy[path[0]], path[1:])
    return copy
