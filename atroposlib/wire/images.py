"""Images of a group: texts (usually base64) that are checked and never decoded."""

from __future__ import annotations

import base64
import codecs
import re
from typing import Any

import msgspec

from atroposlib.errors import InvalidGroup, PictureError

IMAGES = "images"
# A larger JSON member is only accepted as images, which are texts and are not decoded.
LARGE_REST = 8 * 2**20  # bytes
MAX_REST_VALUES = 2**17
_CHECKED_BYTES = 128 * 2**10
MAX_PICTURE_CHARACTERS = 8 * 2**20 * 4 // 3  # base64 of 8 MB
_DATA_URL = re.compile(r"data:image/(?:png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}")


def is_picture(url: Any) -> bool:
    """Whether ``url`` is a data URL of PNG, JPEG or WebP of at most 8 MB."""
    fits = isinstance(url, str) and len(url) <= MAX_PICTURE_CHARACTERS
    return fits and _DATA_URL.fullmatch(url) is not None


def picture_url(part: Any) -> Any:
    """Address in a content part of type ``image_url``; None for any other part."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    image = part.get("image_url")
    return image.get("url") if isinstance(image, dict) else image


def pictures_of(images: Any, row: int) -> list[str]:
    """The data URLs of a row in the field ``images`` of a group: a list or a text per row."""
    own = images[row] if isinstance(images, list) and row < len(images) else []
    return [url for url in (own if isinstance(own, list) else [own]) if is_picture(url)]


def has_images(images: Any) -> bool:
    """Whether there is a picture; an environment without pictures may send lists of None."""
    return any(map(has_images, images)) if isinstance(images, (list, tuple)) else bool(images)


def row_images(images: Any, row: int) -> list[bytes]:
    """The bytes of the images of a row; a group holds a list or a text per row.

    Raises PictureError: an image is neither a data URL of a picture nor base64.
    """
    own = images[row] if isinstance(images, list) and row < len(images) else None
    return [picture_bytes(text) for text in (own if isinstance(own, list) else [own]) if text]


def picture_bytes(text: Any) -> bytes:
    """The bytes of a picture in a data URL, or of base64 alone.

    Raises PictureError: the text is neither, or too long.
    """
    try:
        if not isinstance(text, str) or len(text) > MAX_PICTURE_CHARACTERS:
            raise ValueError
        if text.startswith("data:") and not is_picture(text):
            raise ValueError
        return base64.b64decode(text.rpartition(",")[2], validate=True)
    except ValueError:
        raise PictureError(
            "an image is no data URL of PNG, JPEG or WebP of at most 8 MB, such as"
            " data:image/png;base64,iVBOR..."
        ) from None


def check_images(text: bytes | memoryview) -> None:
    """Check texts of any length (usually base64), without a copy of the texts."""
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
