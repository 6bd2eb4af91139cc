"""Decompression of bodies: dense bodies are accepted, damaged or too large ones rejected."""

from __future__ import annotations

import gzip
import tracemalloc
from functools import cache, partial

import pytest
import zstandard
from hypothesis import given, strategies as st

from atroposlib.api.guards.inflate import BodyTooLarge, DamagedBody, inflate, inflated_size

MB = 2**20
LIMIT = 128 * MB


def unpacked(encoding, body, limit, keep=True):
    pieces = inflate(encoding, body, inflated_size(encoding, body, limit))
    return b"".join(piece for piece in pieces if keep)


gunzip, unzstd = partial(unpacked, "gzip"), partial(unpacked, "zstd")


def streamed(data):
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


@given(st.binary(max_size=2000))
def test_a_compressed_body_is_inflated(data):
    for packed, unpack in (
        (gzip.compress(data), gunzip),
        (zstandard.ZstdCompressor().compress(data), unzstd),
        (streamed(data), unzstd),
    ):
        assert unpack(packed, len(data)) == data
        if data:
            with pytest.raises(BodyTooLarge):
                unpack(packed, len(data) - 1)


def test_a_highly_compressed_body_within_the_limit_is_inflated():
    dense = bytes(40 * MB)
    assert gunzip(gzip.compress(dense, 1), LIMIT) == dense
    assert unzstd(zstandard.ZstdCompressor().compress(dense), LIMIT) == dense


@cache
def bomb() -> bytes:
    return gzip.compress(bytes(200 * MB), 1)


def bomb_of_size(size: int) -> bytes:
    """The bomb with ``size`` as its uncompressed size in the trailer."""
    return bomb()[:-4] + size.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("packed", "unpack", "refusal"),
    [
        (bomb, gunzip, BodyTooLarge),
        (lambda: bomb_of_size(100 * MB), gunzip, DamagedBody),
        (lambda: bomb_of_size(1000), gunzip, DamagedBody),
        (lambda: bomb_of_size(2**32 - 1), gunzip, BodyTooLarge),
        (lambda: streamed(bytes(200 * MB)), unzstd, BodyTooLarge),
        (
            lambda: zstandard.ZstdCompressor().compress(bytes(200 * MB)),
            unzstd,
            BodyTooLarge,
        ),
    ],
    ids=["true size", "smaller size", "tiny size", "larger size", "zstd stream", "zstd"],
)
def test_a_decompression_bomb_is_rejected_before_its_memory_is_allocated(
    packed, unpack, refusal
):
    body = packed()  # made here: at import every process of the tests would pay for it
    tracemalloc.start()
    try:
        with pytest.raises(refusal):
            unpack(body, LIMIT, keep=False)
        assert tracemalloc.get_traced_memory()[1] < 32 * MB
    finally:
        tracemalloc.stop()


GOOD = gzip.compress(b"tokens" * 100)
DENSE = gzip.compress(bytes(40 * MB), 1)
GOOD_ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(b"tokens" * 100)
DAMAGED = {
    "plain": (b"plain", gunzip),
    "cut": (GOOD[:-9], gunzip),
    "last byte cut": (GOOD[:-1], gunzip),
    "more behind": (GOOD + b"more", gunzip),
    "two": (GOOD + GOOD, gunzip),
    "dense, more behind": (DENSE + b"\xff" * 4, gunzip),
    "dense, cut": (DENSE[:-9] + b"\xff" * 4, gunzip),
    "zstd plain": (b"plain", unzstd),
    "zstd cut": (GOOD_ZSTD[:-1], unzstd),
    "zstd checksum": (GOOD_ZSTD[:-1] + b"\x00", unzstd),
    "zstd more behind": (GOOD_ZSTD + b"more", unzstd),
    "zstd two": (GOOD_ZSTD + GOOD_ZSTD, unzstd),
    "zstd stream cut": (streamed(b"tokens" * 100)[:-2], unzstd),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_body_is_refused(kind):
    packed, unpack = DAMAGED[kind]
    with pytest.raises(DamagedBody):
        unpack(packed, LIMIT)
