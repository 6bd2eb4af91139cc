"""Chat messages to prompt text and token ids, and decoding of samples.

Works with any tokenizer that has ``encode`` and ``decode``. Options that a tokenizer does not
take are not passed to it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.generation.chat.special_tokens import GUARD, guard_tokens
from atroposlib.generation.configs import APIServerConfig
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

# Replacements of the think tags that no chat template matches, so it strips no thinking.
_SHIELDS = {"<think>": "\u2060[thinking\u2060", "</think>": "\u2060thinking]\u2060"}
# End of a generation prompt that opens the reasoning, or that has an empty block.
_OPENED_THINKING = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
# Options of vLLM's chat route about the end of the prompt.
PROMPT_END = ("add_generation_prompt", "continue_final_message")

# Prefixes for text that is not at the beginning; at least one prefix does not merge with the
# text.
_ANCHORS = (".", "a", "0")

# Prompt tokens decoded with a sample; leading spaces depend on no earlier tokens.
CONTEXT_TOKENS = 8

Messages = Sequence[Any]  # dicts, or the openai package's message objects


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer renders chats, with or without a ``chat_template`` attribute."""
    if not hasattr(tokenizer, "apply_chat_template"):
        return False
    return bool(getattr(tokenizer, "chat_template", True))


def render(
    tokenizer: Any,
    messages: Messages,
    *,
    preserve_think_blocks: bool = False,
    tools: Sequence[Any] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    guard: bool = False,
) -> str:
    """The prompt text, after which the model writes: a generation prompt at its end, or the
    beginning of the assistant's last message, which is continued.

    Without a template: a ``role: content`` line per message. Raises ConfigError for content
    other than text, and for a last message that the template does not keep.

    Args:
        preserve_think_blocks: keep earlier ``<think>`` blocks that the template would drop.
        tools: passed to the template, which describes the tools in the prompt.
        template_kwargs: for the template; PROMPT_END as for vLLM.
        guard: mark texts of special tokens in text that the model did not write, for
            :func:`encode_prompt` (``special_tokens.py``).
    """
    shown = template_messages(messages)
    if guard:
        shown = [_guard(tokenizer, message) for message in shown]
    options: dict[str, Any] = {
        **(template_kwargs or {}),
        **({"tools": tools} if tools else {}),
    }
    ask, begun = _prompt_end(shown, *(options.pop(name, None) for name in PROMPT_END))
    if not has_template(tokenizer):
        lines = [f"{m['role']}: {m['content']}" for m in shown]
        return "\n".join([*lines, "assistant:"] if ask else lines)

    def render_turns(turns: list[Message], add_generation_prompt: bool) -> str:
        kwargs = {"tokenize": False, "add_generation_prompt": add_generation_prompt, **options}
        return str(_call(tokenizer.apply_chat_template, turns, **kwargs))

    if not preserve_think_blocks:
        text = render_turns(shown, ask)
    else:
        text = render_turns(_shield(shown, _opened_thinking(shown, render_turns)), ask)
        for marker, shield in _SHIELDS.items():
            text = text.replace(shield, marker)
    return text if begun is None else _up_to_end_of(begun, text)


def _prompt_end(
    messages: list[Message], ask: bool | None, proceed: bool | None
) -> tuple[bool, str | None]:
    """Whether a generation prompt ends the prompt, and the message that is continued instead.

    Raises ConfigError if both are asked for, or there is no message to continue.
    """
    last = messages[-1] if messages else {}
    begun = str(last["content"]) if last.get("role") == "assistant" else None
    if proceed and (ask or not begun):
        raise ConfigError(
            "continue_final_message: the last message has to be the assistant's and have "
            "content, without add_generation_prompt"
        )
    if ask is None:
        ask = begun is None
    return ask, None if ask or proceed is False else begun


def _up_to_end_of(begun: str, text: str) -> str:
    """``text`` up to the end of its last message, which the model continues."""
    for content in (begun, begun.strip()):
        at = text.rfind(content)
        if at >= 0:
            return text[: at + len(content)] if content else text
    raise ConfigError(
        "the chat template does not keep the last message of the assistant as it is, so it "
        "cannot be continued: leave the message out, or set add_generation_prompt"
    )


def _guard(tokenizer: Any, message: Message) -> Message:
    if message.get("role") == "assistant":
        return message
    return {**message, "content": guard_tokens(tokenizer, message["content"])}


def shows_tools(tokenizer: Any, tools: Sequence[Any]) -> bool:
    """Whether the chat template writes ``tools`` into the prompt."""
    question = [{"role": "user", "content": "?"}]
    return render(tokenizer, question, tools=tools) != render(tokenizer, question)


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Ids of a whole prompt; a chat template has added the special tokens already."""
    first, *pieces = text.split(GUARD)
    ids = _encode(tokenizer, first, special=not has_template(tokenizer))
    for piece in pieces:
        ids += _encoded_after(tokenizer, ids, piece)
    return ids


def encode_after(tokenizer: Any, before: Sequence[int], text: str) -> list[int]:
    """Ids of ``text`` in the middle of a sequence, after the tokens ``before``.

    The text is encoded with a prefix, if possible the last token of ``before``: some
    tokenizers insert a space at the beginning of a text.
    """
    ids: list[int] = []
    for piece in text.split(GUARD):
        ids += _encoded_after(tokenizer, [*before[-1:], *ids], piece)
    return ids


def _encoded_after(tokenizer: Any, before: Sequence[int], text: str) -> list[int]:
    if not text:
        return []
    for anchor in (text_of_ids(tokenizer, before[-1:], skip_special=False), *_ANCHORS):
        alone = _encode(tokenizer, anchor, special=False) if anchor else []
        both = _encode(tokenizer, anchor + text, special=False)
        if alone and both[: len(alone)] == alone:  # otherwise the prefix merged with the text
            return both[len(alone) :]
    return _encode(tokenizer, text, special=False)


def text_of_ids(tokenizer: Any, ids: Sequence[int], *, skip_special: bool) -> str:
    """Text of ``ids``, without the clean-up of spaces, which would change the text."""
    options = {"skip_special_tokens": skip_special, "clean_up_tokenization_spaces": False}
    return str(_call(tokenizer.decode, list(ids), **options))


def require_known_ids(tokenizer: Any, ids: Sequence[int]) -> None:
    """Raise TokensMissing for ``ids`` that the tokenizer lacks; decoding drops these ids."""
    known = len(tokenizer) if hasattr(tokenizer, "__len__") else sys.maxsize
    highest = max(ids, default=-1)
    # A vocabulary with gaps has ids beyond its size, which decode to text.
    if highest < known or text_of_ids(tokenizer, [highest], skip_special=False):
        return
    raise TokensMissing(
        f"the server sampled token {highest}, so its vocabulary has at least {highest + 1} "
        f"tokens, and the tokenizer {getattr(tokenizer, 'name_or_path', '')} has {known}: "
        "set tokenizer_name to the model of the server"
    )


def decode_after(
    tokenizer: Any, before: Sequence[int], tokens: Sequence[int], *, skip_special: bool
) -> str:
    """Text of ``tokens`` after the tokens ``before``.

    Both are decoded together, because some tokenizers drop a leading space. Without it the
    next prompt would differ from the sampled text.
    """
    context = list(before[-CONTEXT_TOKENS:])
    start = text_of_ids(tokenizer, context, skip_special=skip_special) if context else ""
    whole = text_of_ids(tokenizer, [*context, *tokens], skip_special=skip_special)
    if whole.startswith(start) and len(whole) > len(start):
        return whole[len(start) :]
    return text_of_ids(tokenizer, tokens, skip_special=skip_special)


def _encode(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    return list(_call(tokenizer.encode, text, add_special_tokens=special))


def _call(function: Callable[..., Any], value: Any, **options: Any) -> Any:
    """``function(value, ...)`` with the options that its signature has."""
    try:
        known = inspect.signature(function).parameters.values()
    except ValueError:  # a C function without a signature
        return function(value)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        names = {parameter.name for parameter in known}
        options = {name: option for name, option in options.items() if name in names}
    return function(value, **options)


def _opened_thinking(
    messages: list[Message], rendered: Callable[[list[Message], bool], str]
) -> str:
    """End of a generation prompt that opens the think block, for example ``<think>\\n``.

    The sampled text does not contain it, so it is missing from the history.
    """
    with_prompt, without_prompt = rendered(messages, True), rendered(messages, False)
    opened = _OPENED_THINKING.search(with_prompt.removeprefix(without_prompt))
    return opened.group() if opened else ""


def _shield(messages: list[Message], opened: str) -> list[Message]:
    shown = []
    for message in messages:
        if message.get("role") == "assistant":
            content = message["content"]
            unopened = "<think>" not in content
            if unopened and ("</think>" in content) != ("</think>" in opened):
                content = opened + content
            for marker, shield in _SHIELDS.items():
                content = content.replace(marker, shield)
            message = {**message, "content": content}
        shown.append(message)
    return shown


Message = dict[str, Any]

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


def plain_message(message: Any) -> Message:
    """A message or tool call as a dict, also from an object of the openai package."""
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        raise ConfigError(f"messages: a message is a dict, not {type(message).__name__}")
    return dict(dump(exclude_none=True))


def template_messages(messages: Sequence[Any]) -> list[Message]:
    """Messages whose ``content`` is a single text: None becomes "", text parts are joined.

    Raises ConfigError for other parts, like images, which rows of text tokens cannot hold.
    """
    plain = [plain_message(message) for message in messages]
    return [
        {**message, "content": content_text(message.get("content"), f"messages[{i}]")}
        for i, message in enumerate(plain)
    ]


def content_text(content: Any, where: str = "message") -> str:
    """The text of ``content``: a string, None, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ConfigError(f"{where}.content: a string or a list of parts")
    return "".join(_part_text(part, where) for part in content)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    part = plain_message(part)
    kind = str(part.get("type", "text"))
    if kind not in TEXT_PARTS:
        raise ConfigError(
            f"{where}.content: a part of type {kind!r} is not text, so its tokens are not known "
            "here; chat calls take pictures as data URLs (image_url), and no other parts"
        )
    return str(part.get("refusal" if kind == "refusal" else "text") or "")


def load_tokenizer(config: APIServerConfig) -> Any:
    """The tokenizer of ``tokenizer_name``, else of ``model_name``. Raises ConfigError."""
    named = config.tokenizer_name not in ("", "none")
    return load_tokenizer_named(config.tokenizer_name if named else config.model_name)
