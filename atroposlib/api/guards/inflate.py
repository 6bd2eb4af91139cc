"""Bounded decompression of gzip and zstd bodies. Blocking: call it in a thread.

A bomb must cost neither memory nor much time. A body of constant numbers is as dense as a
bomb and must work. So a body with an unusual ratio is inflated twice: the first pass only
counts bytes, and the second keeps them if the first ended within the limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import zstandard

PLAIN_BYTES = 32 * 2**20  # up to this size one pass suffices at any ratio
PLAIN_RATIO = 50  # JSON of token ids and logprobs shrinks by 3 to 12
_FEED_BYTES = 16 * 2**10
_STEP_BYTES = 256 * 2**10
_MAX_WINDOW_BYTES = 8 * 2**20  # memory of a zstd window; no common level needs more


class DamagedBody(ValueError):
    """Not compressed as declared, truncated, or followed by other bytes."""


class BodyTooLarge(ValueError):
    """The body, or what it inflates to, is over the limit."""


def gzip_size(body: bytes) -> int:
    """The size declared at the end of a gzip member, which zlib verifies."""
    return int.from_bytes(body[-4:], "little")


def zstd_size(body: bytes) -> int:
    """The size declared in the head of a zstd frame, or an estimate without one."""
    try:
        declared = int(zstandard.frame_content_size(body))
    except zstandard.ZstdError:
        return 0
    return declared if declared >= 0 else PLAIN_RATIO * len(body)


@contextmanager
def _undamaged(encoding: str) -> Iterator[None]:
    try:
        yield
    except (zlib.error, zstandard.ZstdError) as cause:
        raise DamagedBody(f"Invalid {encoding} payload") from cause


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Inflate one gzip member.

    Raises:
        DamagedBody: the payload is damaged or incomplete.
        BodyTooLarge: it inflates to more than ``max_bytes``.
    """
    if not body:
        return b""
    declared = gzip_size(body)
    with _undamaged("gzip"):
        if declared <= max(PLAIN_BYTES, PLAIN_RATIO * len(body)):
            return _gunzipped(body, min(declared, max_bytes), max_bytes)
        size = _total_within(_gunzipped_sizes(body), max_bytes)
        return zlib.decompress(body, wbits=31, bufsize=size)  # into one buffer, not two


def unzstd(body: bytes, max_bytes: int) -> bytes:
    """Inflate one zstd frame, with or without a declared size.

    Raises:
        DamagedBody, BodyTooLarge: as for :func:`gunzip`.
    """
    if not body:
        return b""
    with _undamaged("zstd"):
        # One step of a decompressobj inflates all input, so a reader counts the bytes
        # first. The reader alone does not detect a truncated frame.
        _total_within(_unzstded_sizes(body), max_bytes)
        inflater = zstandard.ZstdDecompressor(
            max_window_size=_MAX_WINDOW_BYTES
        ).decompressobj()
        inflated = inflater.decompress(body)
        if not inflater.eof or inflater.unused_data:
            raise zstandard.ZstdError("incomplete, or other bytes follow")
    return inflated


def _total_within(sizes: Iterable[int], max_bytes: int) -> int:
    total = 0
    for size in sizes:
        total += size
        if total > max_bytes:
            raise BodyTooLarge(f"the body inflates to more than {max_bytes} bytes")
    return total


def _gunzipped(body: bytes, declared: int, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    inflated = inflater.decompress(body, declared + 1)
    _total_within([len(inflated)], max_bytes)
    if not inflater.eof or inflater.unused_data:
        raise zlib.error("incomplete, or other bytes follow")
    return inflated


def _gunzipped_sizes(body: bytes) -> Iterator[int]:
    inflater = zlib.decompressobj(wbits=31)
    view = memoryview(body)
    for start in range(0, len(view), _FEED_BYTES):
        feed: bytes | memoryview = view[start : start + _FEED_BYTES]
        while len(feed) and not inflater.eof:
            yield len(inflater.decompress(feed, _STEP_BYTES))
            feed = inflater.unconsumed_tail
        if inflater.eof and (inflater.unused_data or start + _FEED_BYTES < len(view)):
            raise zlib.error("other bytes follow")
    if not inflater.eof:
        raise zlib.error("incomplete")


def _unzstded_sizes(body: bytes) -> Iterator[int]:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(body)
    while piece := reader.read(_STEP_BYTES):
        yield len(piece)
