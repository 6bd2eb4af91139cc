"""Pictures of chat messages: content parts with data URLs, which are checked and never fetched.

OpenAI's image_url, Responses' input_image, image of Anthropic and transformers --chat_content--> image_url
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.template import (
    Message,
    Messages,
    content_text,
    plain_message,
)
from atroposlib.wire.images import (
    MAX_PICTURE_CHARACTERS,
    image_source,
    picture_problem,
    picture_url,
)

SHOWN_CHARACTERS = 80  # limit of an address in an error


def chat_content(content: Any, where: str = "message") -> str | list[Message]:
    """The text of ``content``; with pictures a list of parts of type text and image_url.

    Raises ConfigError: a part is neither a text nor a picture in a data URL.
    """
    if not _urls(content, where):
        return content_text(content, where)
    parts = (part if isinstance(part, str) else plain_message(part) for part in content)
    return [
        _image_part(part, where) or {"type": "text", "text": content_text([part], where)}
        for part in parts
    ]


def pictures_in(messages: Messages) -> list[str]:
    """Data URLs of all pictures, in order. Raises ConfigError: an address is no data URL."""
    return [
        url
        for i, message in enumerate(messages)
        for url in _urls(plain_message(message).get("content"), f"messages[{i}]")
    ]


def _urls(content: Any, where: str) -> list[str]:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return []
    plain = [plain_message(part) for part in content if not isinstance(part, str)]
    image_parts = [_image_part(part, where) for part in plain]
    return [picture_url(part) for part in image_parts if part is not None]


def _image_part(part: Any, where: str) -> Message | None:
    """The part in OpenAI's form; None for a part of a different kind."""
    image = image_source(part)
    if image is None:
        return None
    url = image.get("url")
    if (problem := picture_problem(url)) is not None:
        shown = str(url)[:SHOWN_CHARACTERS]
        raise ConfigError(
            f"{where}.content: a picture is a data URL of PNG, JPEG or WebP with at most "
            f"{MAX_PICTURE_CHARACTERS} characters, such as data:image/png;base64,iVBOR..., and no "
            f"address to fetch: {problem} ({shown!r})"
        )
    return {"type": "image_url", "image_url": image}
