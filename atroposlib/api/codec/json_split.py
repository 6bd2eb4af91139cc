"""Where the objects of a JSON list begin and end, so that each keeps its own bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLANKS = b" \t\r\n"


def split_list(body: bytes) -> list[slice] | None:
    """Where the elements of a list of objects are, if every one of them is valid JSON; None if this
    is not such a list. Looks at quotes, backslashes and braces only, all bytes at once.
    """
    text = np.frombuffer(body, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    if b"\\" in body:
        quotes = np.setdiff1d(quotes, _escaped(text), assume_unique=True)
    opening = _outside(np.flatnonzero(text == ord("{")), quotes)
    closing = _outside(np.flatnonzero(text == ord("}")), quotes)
    if not len(opening) or len(opening) != len(closing):
        return None
    places = np.concatenate([opening, closing])
    steps = np.concatenate([np.ones_like(opening), -np.ones_like(closing)])
    order = np.argsort(places)
    places, steps = places[order], steps[order]
    depth = np.cumsum(steps)
    starts = places[(depth == 1) & (steps == 1)].tolist()
    ends = (places[depth == 0] + 1).tolist()
    if len(starts) != len(ends) or int(depth.min()) < 0:
        return None
    glue = [body[end:start] for end, start in zip([0, *ends], [*starts, len(body)])]
    if [one.strip(_BLANKS) for one in glue] != [b"[", *[b","] * (len(starts) - 1), b"]"]:
        return None
    return [slice(start, end) for start, end in zip(starts, ends)]


def _escaped(text: NDArray[np.uint8]) -> NDArray[Any]:
    """Positions after an odd number of backslashes."""
    slashes = np.flatnonzero(text == ord("\\"))
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of each run
    lengths = np.diff(first, append=len(slashes))
    odd = lengths % 2 == 1
    escaped: NDArray[Any] = slashes[first[odd]] + lengths[odd]
    return escaped


def _outside(places: NDArray[Any], quotes: NDArray[Any]) -> NDArray[Any]:
    """Those that are not inside a string."""
    outside: NDArray[Any] = places[np.searchsorted(quotes, places) % 2 == 0]
    return outside
