"""Images of a group: texts, such as base64, that are checked and never decoded."""

from __future__ import annotations

import codecs

import msgspec

from atroposlib.errors import InvalidGroup

IMAGES = "images"
# A larger JSON member is only accepted as images, which are texts and are not decoded.
LARGE_REST = 8 * 2**20  # bytes
MAX_REST_VALUES = 2**17
_CHECKED_BYTES = 128 * 2**10


def check_images(text: bytes | memoryview) -> None:
    """Check texts of any length, such as base64, without a copy of them."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    values = 0
    try:
        for start in range(0, len(text), _CHECKED_BYTES):
            piece = bytes(text[start : start + _CHECKED_BYTES])
            values += piece.count(b",") + piece.count(b"[")
            decoder.decode(piece)
        msgspec.json.decode(text, type=msgspec.Raw)
    except ValueError as error:
        raise InvalidGroup(IMAGES, "", "not valid JSON in UTF-8") from error
    if values > MAX_REST_VALUES:
        problem = f"more than {MAX_REST_VALUES} values: images are texts, such as base64"
        raise InvalidGroup(IMAGES, "", problem)
