"""Lines of JSON that every reader takes, text that UTF-8 can encode, and starts in logs.

A model's text may have half of a surrogate pair, which no file can hold, and separators like
U+2028, at which ``str.splitlines`` cuts a line of JSON in two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

LOG_STARTED = "--- started "  # first words of the line that begins a process in its log


def since_last_start(log: str) -> str:
    """The lines of a log after the last start of its process; all lines without a start."""
    _, started, rest = log.rpartition(LOG_STARTED)
    return rest.partition("\n")[2] if started else log


def encodable(text: str) -> str:
    """``text`` with U+FFFD in place of halves of surrogate pairs; whole pairs are joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encodable_values(value: Any) -> Any:
    """A JSON value whose texts, keys included, are :func:`encodable`."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable_values(key): encodable_values(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [encodable_values(entry) for entry in value]
    return value


def aligned_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def json_line(value: Any) -> str:
    """``value`` as a line of strict JSON, with its end.

    A number that is not finite is null, because JSON has no form for it. Sets become sorted
    lists, and objects of other types their ``repr``.
    """
    return encodable(json.dumps(strict(value), ensure_ascii=False, default=repr)) + "\n"


def json_lines(text: str) -> list[Any]:
    r"""Values of the lines of ``text``. Only ``\n`` ends a line. Raises ValueError."""
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def strict(value: Any) -> Any:
    """``value`` with null for numbers that are not finite, and lists for sets."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(strict, value), key=repr)
    return value
