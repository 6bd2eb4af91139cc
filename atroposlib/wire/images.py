"""Images of a group: texts (usually base64) that the API checks and never decodes.

A group has a list or a text per row. A picture may be written once: a row that has it again refers
to it by ``sha256:`` and the digest of its text.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from atroposlib.errors import InvalidGroup, PictureError

IMAGES = "images"
# A larger JSON member is only accepted as images.
LARGE_REST = 8 * 2**20  # bytes
# Larger images are checked as texts: a copy, or decoded values, would hold the interpreter for ms.
LARGE_IMAGES = 2**18  # bytes
MAX_REST_VALUES = 2**17
_CHECKED_BYTES = 128 * 2**10
MAX_PICTURE_CHARACTERS = 8 * 2**20 * 4 // 3  # base64 of 8 MB
MAX_GROUP_BYTES = 2**28  # distinct pictures of a group, decoded from base64
REFERENCE = "sha256:"
REFERENCE_CHARACTERS = len(REFERENCE) + 64
_DATA_URLS = (
    "data URL of PNG, JPEG or WebP of at most 8 MB, such as data:image/png;base64,iVBOR..."
)
_HEAD = re.compile(r"data:image/(?:png|jpe?g|webp);base64,")
_DATA_URL = re.compile(_HEAD.pattern + r"[A-Za-z0-9+/]+={0,2}")
TEXT_PARTS = ("text", "input_text", "output_text")
HEAD_CHARACTERS = 40  # shown in an error, where data URLs are long


def is_picture(url: Any) -> bool:
    """Whether ``url`` is a data URL of PNG, JPEG or WebP of at most 8 MB."""
    return picture_problem(url) is None


def picture_problem(url: Any) -> str | None:
    """Why ``url`` is no data URL of a picture; None: ``url`` is a data URL."""
    if not isinstance(url, str):
        return f"it is no text, but {type(url).__name__}"
    if not url.startswith("data:"):
        return "it is never fetched from an address, so send the data itself"
    head = _HEAD.match(url)
    if head is None:
        return f"it begins with {url[:HEAD_CHARACTERS]!r}"
    if len(url) > MAX_PICTURE_CHARACTERS:
        return f"it has {len(url)} characters, at most {MAX_PICTURE_CHARACTERS}"
    if _DATA_URL.fullmatch(url) is not None:
        return None
    data = url[head.end() :]
    if any(map(str.isspace, data)):
        return "its base64 has spaces or line ends: use base64.b64encode, not encodebytes"
    if "-" in data or "_" in data:
        return "its base64 is of the alphabet for URLs: use base64.b64encode"
    return "its base64 has other characters, or is empty"


def picture_url(part: Any) -> Any:
    """Address in a content part of type ``image_url``; None for a part of a different type."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    image = part.get("image_url")
    return image.get("url") if isinstance(image, dict) else image


def image_source(part: Any) -> dict[str, Any] | None:
    """Content of a part that is an image, with the key ``url``; None for a part of a different kind.

    Of OpenAI's chats and responses, of Anthropic's messages, and of transformers.
    """
    if not isinstance(part, Mapping):
        return None
    kind, source = part.get("type"), part.get("image_url")
    if kind == "image":
        source = part.get("image") or part.get("url") or part.get("source") or {}
        if isinstance(source, Mapping) and source.get("type") == "base64":
            source = f"data:{source.get('media_type')};base64,{source.get('data')}"
    elif kind not in ("image_url", "input_image"):
        return None
    return dict(source) if isinstance(source, Mapping) else {"url": source}


def text_or_parts(content: Any, where: str) -> str | list[dict[str, Any]]:
    """The text of a list of content parts; with pictures a list of parts text and image_url.

    Raises PictureError: the content is no list, or a part is neither a text nor a picture.
    """
    if not isinstance(content, list):
        raise PictureError(f"{where}.content: a string or a list of parts")
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if (image := image_source(part)) is not None:
            if (problem := picture_problem(image.get("url"))) is not None:
                raise PictureError(f"{where}.content: a picture is a {_DATA_URLS}: {problem}")
            parts.append({"type": "image_url", "image_url": image})
        elif kind in TEXT_PARTS:
            text = part.get("text") if isinstance(part, Mapping) else part
            parts.append({"type": "text", "text": str(text or "")})
        else:
            raise PictureError(
                f"{where}.content: a part of type {kind!r} is not text, so it has no tokens here"
            )
    if any(map(_is_image, parts)):
        return parts
    return "".join(part["text"] for part in parts)


def message_has_pictures(message: Mapping[str, Any]) -> bool:
    """Whether a chat message has a content part of type ``image_url``."""
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_image, content))


def split_pictures(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Messages whose contents are lists of parts ``text`` and ``image``, and the pictures.

    Raises PictureError: a part is neither a text nor a picture in a data URL.
    """
    pictures: list[bytes] = []
    shown = []
    for message in messages:
        content = message.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept = []
        for part in parts:
            if _is_image(part):
                url = picture_url(part)
                if (problem := picture_problem(url)) is not None:
                    raise PictureError(f"a picture is a {_DATA_URLS}: {problem}")
                pictures.append(picture_bytes(url))
                kept.append({"type": "image"})
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                kept.append({"type": "text", "text": part["text"]})
            else:
                raise PictureError("a content part is a text or a picture (image_url)")
        shown.append({**message, "content": kept})
    return shown, pictures


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"


def pictures_of(images: Any, row: int) -> list[str]:
    """The data URLs of a row in the field ``images`` of a group: a list or a text per row."""
    own = _texts(images, row)
    if any(map(_is_reference, own)):
        known = _by_reference(images)
        own = [known.get(text, text) for text in own]
    return [url for url in own if is_picture(url)]


def with_references(images: Any) -> Any:
    """``images`` with a reference in place of each text that an earlier place has."""
    seen: dict[str, str] = {}

    def place(text: Any) -> Any:
        if not isinstance(text, str) or len(text) <= REFERENCE_CHARACTERS:
            return text
        if text in seen:
            return seen[text]
        seen[text] = _reference(text)
        return text

    if not isinstance(images, list):
        return images
    return [[place(t) for t in own] if isinstance(own, list) else place(own) for own in images]


def _texts(images: Any, row: int) -> list[Any]:
    own = images[row] if isinstance(images, list) and row < len(images) else []
    return own if isinstance(own, list) else [own]


def _reference(text: str) -> str:
    return REFERENCE + hashlib.sha256(text.encode()).hexdigest()


def _is_reference(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(REFERENCE)


def _by_reference(images: list[Any]) -> dict[str, str]:
    texts = {
        t for row in range(len(images)) for t in _texts(images, row) if isinstance(t, str)
    }
    return {_reference(text): text for text in texts if not _is_reference(text)}


def has_images(images: Any) -> bool:
    """Whether there is a picture; an environment without pictures may send lists of None."""
    return any(map(has_images, images)) if isinstance(images, (list, tuple)) else bool(images)


class GroupImages:
    """The images of a group as bytes, each decoded once."""

    def __init__(self, images: Any) -> None:
        self._images = images
        self._known = _by_reference(images) if isinstance(images, list) else {}
        self._decoded: dict[str, bytes] = {}

    def of_row(self, row: int) -> list[bytes]:
        """The images of a row, in order.

        Raises PictureError: an image is neither a data URL of a picture nor base64, a reference
        has no image, or the group has too many bytes.
        """
        return [self._decode(text) for text in _texts(self._images, row) if text]

    def _decode(self, text: Any) -> bytes:
        if _is_reference(text) and text not in self._known:
            raise PictureError(f"no image of the group has the digest {text[:20]}...")
        text = self._known.get(text, text) if isinstance(text, str) else text
        if not isinstance(text, str) or text not in self._decoded:
            self._decoded[text] = picture_bytes(text)
            if sum(map(len, self._decoded.values())) > MAX_GROUP_BYTES:
                raise PictureError(f"more than {MAX_GROUP_BYTES} bytes of pictures in a group")
        return self._decoded[text]


def picture_bytes(text: Any) -> bytes:
    """The bytes of a picture in a data URL, or of base64 alone.

    Raises PictureError: the text is neither, or too long.
    """
    is_bare = isinstance(text, str) and ":" not in text and len(text) <= MAX_PICTURE_CHARACTERS
    problem = None if is_bare else picture_problem(text)
    try:
        if problem is None:
            return base64.b64decode(text.rpartition(",")[2], validate=True)
    except ValueError as error:
        problem = str(error)
    raise PictureError(f"an image is no {_DATA_URLS}: {problem}")


def check_images(text: bytes | memoryview) -> None:
    """Check texts of any length (usually base64), without a copy of the texts."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    values = 0
    try:
        for start in range(0, len(text), _CHECKED_BYTES):
            piece = bytes(text[start : start + _CHECKED_BYTES])
            codes = np.frombuffer(piece, np.uint8)
            values += int(np.count_nonzero((codes == ord(",")) | (codes == ord("["))))
            decoder.decode(piece)
        msgspec.json.decode(text, type=msgspec.Raw)
    except ValueError as error:
        raise InvalidGroup(IMAGES, "", "not valid JSON in UTF-8") from error
    if values > MAX_REST_VALUES:
        problem = f"more than {MAX_REST_VALUES} values: images are texts, such as base64"
        raise InvalidGroup(IMAGES, "", problem)
