"""Bounded decompression of gzip and zstd bodies, piece by piece. Blocking: call it in a thread.

A bomb must cost neither memory nor much time, and a body of constant numbers is as dense as a
bomb and must work. So the size is known before the first byte is kept: it is declared, or
counted by a first pass, and no byte beyond it is produced.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import zstandard

_FEED_BYTES = 16 * 2**10
_ZSTD_FEED_BYTES = 256  # each 4 bytes may inflate to a block of 128 KiB, at once
PIECE_BYTES = 256 * 2**10
_MAX_WINDOW_BYTES = 8 * 2**20  # memory of a zstd window; no common level needs more


class DamagedBody(ValueError):
    """Not compressed as declared, truncated, or followed by further bytes."""


class BodyTooLarge(ValueError):
    """The body, or what it inflates to, is over the limit."""


def inflated_size(encoding: str, body: bytes | bytearray, max_bytes: int) -> int:
    """Bytes that ``body`` inflates to: as declared, or counted without or beyond that.

    Raises:
        DamagedBody: the payload is damaged or incomplete.
        BodyTooLarge: it inflates to more than ``max_bytes``.
    """
    with _refuse_damage(encoding):
        if encoding == "gzip":
            size = int.from_bytes(body[-4:], "little")  # zlib verifies it at the end
        else:
            size = int(zstandard.frame_content_size(body))
        if not 0 <= size <= max_bytes:
            size = 0
            for piece in _PIECES[encoding](body):
                size += len(piece)
                if size > max_bytes:
                    break
    if size > max_bytes:
        raise BodyTooLarge(f"the body inflates to more than {max_bytes} bytes")
    return size


def inflate(encoding: str, body: bytes | bytearray, size: int) -> Iterator[bytes]:
    """The ``size`` bytes in ``body``: a gzip member or zstd frame.

    Raises:
        DamagedBody: damaged or incomplete, followed by further bytes, or of another size.
    """
    left = size
    with _refuse_damage(encoding):
        for piece in _PIECES[encoding](body):
            left -= len(piece)
            if left < 0:
                break
            yield piece
    if left:
        raise DamagedBody(f"Invalid {encoding} payload")


@contextmanager
def _refuse_damage(encoding: str) -> Iterator[None]:
    try:
        yield
    except (zlib.error, zstandard.ZstdError) as cause:
        raise DamagedBody(f"Invalid {encoding} payload") from cause


def _gzip_pieces(body: bytes | bytearray) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    view = memoryview(body)
    for start in range(0, len(view), _FEED_BYTES):
        feed: bytes | memoryview = view[start : start + _FEED_BYTES]
        while len(feed) and not inflater.eof:
            yield inflater.decompress(feed, PIECE_BYTES)
            feed = inflater.unconsumed_tail
        if inflater.eof and (inflater.unused_data or start + _FEED_BYTES < len(view)):
            raise zlib.error("other bytes follow")
    if not inflater.eof:
        raise zlib.error("incomplete")


def _zstd_pieces(body: bytes | bytearray) -> Iterator[bytes]:
    inflater = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
    for start in range(0, len(body), _ZSTD_FEED_BYTES):
        inflated = inflater.decompress(body[start : start + _ZSTD_FEED_BYTES])
        for at in range(0, len(inflated), PIECE_BYTES):
            yield inflated[at : at + PIECE_BYTES]
        if inflater.eof:
            if inflater.unused_data or start + _ZSTD_FEED_BYTES < len(body):
                raise zstandard.ZstdError("other bytes follow")
            return
    raise zstandard.ZstdError("incomplete")


_PIECES = {"gzip": _gzip_pieces, "zstd": _zstd_pieces}
