"""Reader of JSONL training files, in the formats of atropos-sft-gen and atropos-dpo-gen.

    {"prefix", "completion"}                the completion is trained
    {"messages"}                            the turns of the assistant are trained
    {"prefix", "pos", "neg"}, {"pos", "neg"}     a pair, of texts or of lists of messages

Further keys, like ``score``, are ignored. An example is the rows of a line; they share a
``group``, so that their common prefix is computed once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError, PictureError
from atroposlib.utils.tokenize_for_trainer import (
    UNMASKED_ROLES,
    TemplateNotPrefixStable,
    render_turn,
    shared_length,
)
from atroposlib.wire import MASKED
from atroposlib.wire.images import text_or_parts
from example_trainer.data.rows import Row, unsampled_row
from example_trainer.supervised.pictured import has_pictures, pictured_chat, pictured_rows
from example_trainer.supervised.settings import CorpusSettings

if TYPE_CHECKING:
    from atroposlib.utils.models.vision import PictureReader

Example = list[Row]


@dataclass
class Corpus:
    """The examples of a file, and the number of skipped lines by reason."""

    examples: list[Example] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        left_out = "".join(f", {n} left out: {why}" for why, n in self.left_out.items())
        return f"{len(self.examples)} lines{left_out}"


def read(
    path: str, rows_of: Callable[[dict[str, Any], str], Example], max_tokens: int
) -> Corpus:
    """Read the trainable lines of a file.

    A line is skipped as a whole if any of its rows is longer than ``max_tokens`` or has no
    trained token.

    Args:
        rows_of: the rows of a line, and the name of their group.

    Raises:
        ConfigError: the file cannot be read or has no trainable line; names the line.
    """
    corpus = Corpus()
    for number, line in _lines(path):
        try:
            rows = rows_of(line, f"line {number}")
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if any(len(row.tokens) > max_tokens for row in rows):
            corpus.left_out[f"longer than {max_tokens} tokens"] += 1
        elif not rows or not all(row.trained for row in rows):
            corpus.left_out["nothing to train"] += 1
        else:
            corpus.examples.append(rows)
    if not corpus.examples:
        raise ConfigError(f"{path} has no line to train on ({corpus})")
    return corpus


def read_both(
    cfg: CorpusSettings, rows_of: Callable[[dict[str, Any], str], Example], max_tokens: int
) -> tuple[Corpus, Corpus | None]:
    """Read ``train_file``, and ``valid_file`` if it is set; see :func:`read`."""
    train = read(cfg.train_file, rows_of, max_tokens)
    return train, read(cfg.valid_file, rows_of, max_tokens) if cfg.valid_file else None


def _lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{path}, line {number}: not an object in braces")
        yield number, value


# --- a line of each kind --------------------------------------------------------------


def sft_rows(
    tokenizer: Any,
    line: dict[str, Any],
    group: str,
    *,
    end_completions: bool = False,
    reader: PictureReader | None = None,
) -> Example:
    """Build the rows of a line for supervised training."""
    if "messages" in line:
        return chat_rows(tokenizer, _messages(line, "messages"), group, reader=reader)
    prefix, completion = _text(line, "prefix"), _text(line, "completion")
    end = tokenizer.eos_token or ""
    if end_completions and end and not completion.endswith(end):
        completion += end
    return [completion_row(tokenizer, prefix, completion)]


def pair_rows(tokenizer: Any, line: dict[str, Any], group: str) -> Example:
    """Build the better and the worse row of a line, in this order."""
    if "prefix" in line or isinstance(line.get("pos"), str):
        prefix = _text(line, "prefix") if "prefix" in line else ""
        return [
            completion_row(tokenizer, prefix, _text(line, side)) for side in ("pos", "neg")
        ]
    sides = [_messages(line, side) for side in ("pos", "neg")]
    shared = shared_length(*sides)
    rows = [chat_rows(tokenizer, side, group, trained_from=shared) for side in sides]
    if any(len(row) > 1 for row in rows):
        raise ConfigError(
            "the chat template renders earlier turns differently when more follow, so that an"
            " answer of several turns is no single sequence: write the pair with a prefix"
        )
    return [row for side in rows for row in side]


def completion_row(tokenizer: Any, prefix: str, completion: str) -> Row:
    """Build a row whose completion is trained and whose prefix is not.

    The prefix has the tokens it has alone, as when the completion was sampled. The whole text
    is tokenised at once if that keeps these tokens, else the completion separately.
    """
    begin = _ids(tokenizer, prefix)
    whole = _ids(tokenizer, prefix + completion)
    if whole[: len(begin)] != begin:
        whole = begin + _ids(tokenizer, completion)
    bos = _bos(tokenizer, prefix + completion)
    length = len(bos) + len(begin)
    return row_of(bos + whole, [t >= length for t in range(len(bos + whole))], prefix)


def chat_rows(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    group: str,
    *,
    trained_from: int = 0,
    reader: PictureReader | None = None,
) -> Example:
    """Build rows that train the assistant's text in turn ``trained_from`` and later turns.

    Each turn follows exactly the prompt that the model gets when it generates the turn. With
    most chat templates these prompts are prefixes of each other, so that a row holds all; with
    a template that, for example, drops earlier reasoning, there is a row per turn.

    Args:
        reader: makes the tokens of chats with pictures. None: they are refused.
    """
    pictured = has_pictures(messages)
    if pictured:
        tokenizer = pictured_chat(reader, tokenizer)
    parts: list[tuple[list[int], list[bool]]] = []
    for i, message in enumerate(messages):
        if message["role"] not in UNMASKED_ROLES or i < trained_from:
            continue
        tokens, start = _turn(tokenizer, messages[:i], message)
        trained = [t >= start for t in range(len(tokens))]
        if parts and tokens[: len(parts[-1][0])] == parts[-1][0]:
            before = parts.pop()[1]
            trained[: len(before)] = before
        parts.append((tokens, trained))
    rows = [row_of(tokens, trained, group) for tokens, trained in parts]
    return pictured_rows(rows, messages) if pictured else rows


def _turn(
    tokenizer: Any, before: list[dict[str, Any]], message: dict[str, Any]
) -> tuple[list[int], int]:
    """Tokens up to the end of a turn, and the number that are not the model's."""
    from jinja2 import TemplateError

    try:
        return render_turn(tokenizer, before, message)
    except TemplateNotPrefixStable as error:
        raise ConfigError(
            "the chat template renders earlier turns differently when one follows"
        ) from error
    except PictureError as error:
        raise ConfigError(str(error)) from error
    except (TemplateError, ValueError) as error:  # ValueError: there is no template
        raise ConfigError(
            f"the chat template does not take these messages: {error}"
        ) from error


def row_of(tokens: list[int], trained_T: Sequence[bool], group: str) -> Row:
    """Build a row of text that was not sampled; its first token cannot be trained."""
    labels = [token if on else MASKED for token, on in zip(tokens, trained_T)][1:]
    return unsampled_row(tokens, group, labels)


def flat(examples: Sequence[Example]) -> list[Row]:
    """All rows in their order; of pairs better, worse, better, worse ..."""
    return [row for rows in examples for row in rows]


# --- text -> tokens -------------------------------------------------------------------


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _bos(tokenizer: Any, text: str) -> list[int]:
    """Return the token that this tokenizer puts before every text, unless the text has it."""
    bos = tokenizer.bos_token_id
    if bos is None or text.startswith(tokenizer.bos_token):
        return []
    return [bos] if tokenizer(text)["input_ids"][:1] == [bos] else []


def _text(line: dict[str, Any], key: str) -> str:
    if not isinstance(line.get(key), str):
        raise ConfigError(f"{key!r} has to be a text; the keys are {sorted(line)}")
    return str(line[key])


def _messages(line: dict[str, Any], key: str) -> list[dict[str, Any]]:
    messages = line.get(key)
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and "role" in message and "content" in message
        for message in messages
    ):
        raise ConfigError(f"{key!r} has to be a list of messages with role and content")
    try:
        return [
            # A template would write a list of parts as it is, or leave out unknown parts.
            message
            if isinstance(message["content"], str | None)
            else {**message, "content": text_or_parts(message["content"], f"{key}[{i}]")}
            for i, message in enumerate(messages)
        ]
    except PictureError as error:
        raise ConfigError(str(error)) from error
