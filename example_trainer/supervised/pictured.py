"""Chats with pictures as rows: the tokens that a server makes of them, pixels when a row is trained.

{"messages"} with data URLs -> PicturedChat -> tokens, PicturedRow -> with_pixels -> row of a step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError
from atroposlib.wire.images import message_has_pictures, split_pictures
from example_trainer.data.rows import Row

if TYPE_CHECKING:
    from atroposlib.utils.models.vision import PictureReader

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PicturedRow(Row):
    """A row that holds the files of its pictures: the pixels of a whole corpus may exceed memory."""

    files: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class PicturedChat:
    """A tokenizer of chats with pictures: their tokens come from the processor of the model."""

    reader: PictureReader
    tokenizer: Any

    def apply_chat_template(
        self, messages: Messages, *, tokenize: bool, add_generation_prompt: bool
    ) -> list[int]:
        """Token ids of ``messages``. Raises PictureError: a picture cannot be read."""
        shown, pictures = split_pictures(messages)
        text = self.reader.render(shown, add_generation_prompt=add_generation_prompt)
        return self.reader.prompt(text, pictures)[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def has_pictures(messages: Messages) -> bool:
    return any(map(message_has_pictures, messages))


def pictured_chat(reader: PictureReader | None, tokenizer: Any) -> PicturedChat:
    """Raises ConfigError: the model reads text only."""
    if reader is None or not reader.has_template:
        raise ConfigError(
            "the messages have pictures, and the model reads text only, or this training does:"
            " `atropos train sft` takes them with a vision-language model and its processor"
        )
    return PicturedChat(reader, tokenizer)


def pictured_rows(rows: Sequence[Row], messages: Messages) -> list[Row]:
    """The rows of a chat with the files of its pictures.

    Raises ConfigError: the chat is several rows, so that a picture has no certain row.
    """
    if len(rows) > 1:
        raise ConfigError(
            "the chat template renders earlier turns differently when more follow, so that a chat"
            " with pictures is no single sequence: write a line for each turn"
        )
    files = tuple(split_pictures(messages)[1])
    return [PicturedRow(**vars(row), files=files) for row in rows]


def with_pixels(row: Row, reader: PictureReader | None) -> Row:
    """The row with pixel tensors of its files, if it has some. Raises PictureError."""
    if not isinstance(row, PicturedRow) or reader is None:
        return row
    return replace(row, pictures=reader.inputs(row.tokens, row.files))
