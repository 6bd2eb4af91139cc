"""Compressed bodies, inflated within bounds. Blocking: call these in a thread.

A bomb must cost neither memory nor much time, and a body of constant numbers, which is as
dense as a bomb, must work. So what inflates beyond what traffic does is read twice: first
only counted, and kept the second time if it came to a good end within the limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard

PLAIN_BYTES = 32 * 2**20  # as much is kept at once, however dense it was
PLAIN_RATIO = 50  # JSON of token ids and logprobs shrinks by 3 to 12
_FEED_BYTES = 16 * 2**10
_STEP_BYTES = 256 * 2**10
_MAX_WINDOW_BYTES = 8 * 2**20  # of zstd: it lies in memory; no common level asks for more


class DamagedBody(ValueError):
    """Not compressed as declared, or cut short, or followed by something else."""


class BodyTooLarge(ValueError):
    """The body, or what it inflates to, is over the limit."""


def gzip_size(body: bytes) -> int:
    """The size that the end of a gzip member tells; zlib holds a good one to it."""
    return int.from_bytes(body[-4:], "little")


def zstd_size(body: bytes) -> int:
    """The size that the head of a zstd frame tells, or what to expect if it tells none."""
    try:
        declared = int(zstandard.frame_content_size(body))
    except zstandard.ZstdError:
        return 0
    return declared if declared >= 0 else PLAIN_RATIO * len(body)


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Inflate one gzip member.

    Raises:
        DamagedBody: the payload is damaged or incomplete.
        BodyTooLarge: it inflates to more than ``max_bytes``.
    """
    if not body:
        return b""
    declared = gzip_size(body)
    if declared <= max(PLAIN_BYTES, PLAIN_RATIO * len(body)):
        return _gunzipped(body, min(declared, max_bytes), max_bytes)
    size = _total_within(_gunzipped_sizes(body), max_bytes)
    return zlib.decompress(body, wbits=31, bufsize=size)  # into one buffer, not two


def unzstd(body: bytes, max_bytes: int) -> bytes:
    """Inflate one zstd frame; that it tells its size is not required.

    Raises:
        DamagedBody, BodyTooLarge: as for :func:`gunzip`.
    """
    if not body:
        return b""
    try:
        # One step of a decompressobj takes what there is, so it is counted by a reader,
        # which in turn does not notice that a frame was cut short.
        _total_within(_unzstded_sizes(body), max_bytes)
        inflater = zstandard.ZstdDecompressor(
            max_window_size=_MAX_WINDOW_BYTES
        ).decompressobj()
        inflated = inflater.decompress(body)
    except zstandard.ZstdError as cause:
        raise DamagedBody("Invalid zstd payload") from cause
    if not inflater.eof or inflater.unused_data:
        raise DamagedBody("Invalid zstd payload")
    return inflated


def _total_within(sizes: Iterator[int], max_bytes: int) -> int:
    total = 0
    for size in sizes:
        total += size
        if total > max_bytes:
            raise BodyTooLarge(f"the body inflates to more than {max_bytes} bytes")
    return total


def _gunzipped(body: bytes, declared: int, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        inflated = inflater.decompress(body, declared + 1)
    except zlib.error as cause:
        raise DamagedBody("Invalid gzip payload") from cause
    if len(inflated) > max_bytes:
        raise BodyTooLarge(f"the body inflates to more than {max_bytes} bytes")
    if not inflater.eof or inflater.unused_data:
        raise DamagedBody("Invalid gzip payload")
    return inflated


def _gunzipped_sizes(body: bytes) -> Iterator[int]:
    inflater = zlib.decompressobj(wbits=31)
    view = memoryview(body)
    try:
        for start in range(0, len(view), _FEED_BYTES):
            feed: bytes | memoryview = view[start : start + _FEED_BYTES]
            while len(feed) and not inflater.eof:
                yield len(inflater.decompress(feed, _STEP_BYTES))
                feed = inflater.unconsumed_tail
            if inflater.eof and (inflater.unused_data or start + _FEED_BYTES < len(view)):
                break  # something follows
        else:
            if inflater.eof:
                return
    except zlib.error as cause:
        raise DamagedBody("Invalid gzip payload") from cause
    raise DamagedBody("Invalid gzip payload")


def _unzstded_sizes(body: bytes) -> Iterator[int]:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(body)
    while piece := reader.read(_STEP_BYTES):
        yield len(piece)
