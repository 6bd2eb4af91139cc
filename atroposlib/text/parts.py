r"""Parts of a sample's text: reasoning, answer, and the messages of harmony.

    "<think>2+2</think>\n\nIt is 4"  --split-->  reasoning "2+2", answer "It is 4"

The only reader of reasoning marks. A chat reply whose prompt opened the reasoning starts with
the opening mark (:func:`opening_of`), so that its text alone has all parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atroposlib.text.tool_calls import MalformedCall, read_json_value

# Opening and closing mark of reasoning, by family of models. A new pair is a new line.
REASONING_MARKS = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, GLM, Hunyuan
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("◁think▷", "◁/think▷"),  # Kimi-VL
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<thought>", "</thought>"),  # EXAONE Deep
)
# Where a call begins: what it contains is neither a mark nor an answer.
CALL_MARKS = (r"<tool_call>", r"<function=[^>\s]+>", r"\[TOOL_CALLS\]", r"<\|python_tag\|>")

_CLOSE_OF = dict(REASONING_MARKS)
_MARK = re.compile("|".join(re.escape(mark) for pair in REASONING_MARKS for mark in pair))
_QUOTES = "`'\""
_OPENED = re.compile("(?:" + "|".join(re.escape(mark) for mark in _CLOSE_OF) + r")\s*\Z")
_CALL = re.compile("|".join(CALL_MARKS))
# Between the mark of a call and its JSON: a name, in the formats of Mistral.
_NAME = re.compile(r"\s*(?:[\w.\-]+\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?)?\s*")
_BETWEEN_JSON = re.compile(r"\s*[;,]\s*")
_FUNCTION, _FUNCTION_END = re.compile(r"\s*<function="), "</function>"

CHANNEL = "<|channel|>"
_HARMONY = re.compile(
    r"(?P<header>[^<]*)<\|channel\|>(?P<channel>\w+)(?P<to>[^<]*)"
    r"(?:<\|constrain\|>[^<]*)?<\|message\|>(?P<body>.*?)"
    r"(?P<end><\|end\|>|<\|return\|>|<\|call\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"to=([\w.\-]+)")


@dataclass(frozen=True)
class HarmonyMessage:
    """A message of gpt-oss. Example: channel "commentary", recipient "functions.add"."""

    channel: str
    recipient: str | None
    body: str
    ended: bool  # False: cut off


@dataclass(frozen=True)
class Parts:
    """Reasoning and answer of a text. ``answer`` may contain calls of tools."""

    thoughts: tuple[str, ...]  # stretches of reasoning, without their marks
    answer: str | None  # None: the reasoning has not ended

    @property
    def reasoning(self) -> str | None:
        """All reasoning; None without any."""
        return "\n".join(self.thoughts) if self.thoughts else None

    @property
    def final(self) -> str:
        """The answer; "" while the reasoning has not ended."""
        return self.answer or ""


@dataclass(frozen=True)
class Block:
    """A stretch of reasoning: ``text[start:end]`` is ``opening + inner + closing``."""

    start: int
    end: int
    opening: str  # "": the reasoning began before the text
    inner: str
    closing: str  # "": it has not ended


def split(text: str) -> Parts:
    """Reasoning and answer of ``text``.

    Reasoning starts at an opening mark, or at the beginning if only a closing mark follows,
    and ends at the next closing mark. Marks inside of calls, quotes and backticks do not count.
    """
    if CHANNEL in text:
        return _harmony_parts(list(harmony_messages(text)))
    blocks = reasoning_blocks(text)
    ended = not blocks or blocks[-1].closing
    answer = text[blocks[-1].end :] if blocks else text
    return Parts(tuple(block.inner.strip() for block in blocks), answer if ended else None)


def answer_of(text: str) -> str:
    """Text after the reasoning; "" while the reasoning has not ended."""
    return split(text).final


def has_marks(text: str) -> bool:
    """Whether a mark of reasoning occurs in ``text``."""
    return any(mark in text for pair in REASONING_MARKS for mark in pair)


def is_well_formed(text: str) -> bool:
    """Whether the text is a single closed stretch of reasoning without more marks, then an answer.

    The reasoning may have begun before the text.
    """
    if CHANNEL in text:
        parts = split(text)
        return bool(parts.thoughts) and parts.answer is not None
    blocks = reasoning_blocks(text)
    if len(blocks) != 1 or not blocks[0].closing:
        return False
    before, inner = text[: blocks[0].start], blocks[0].inner
    return not before.strip() and _MARK.search(inner) is None


def reasoning_blocks(text: str) -> list[Block]:
    """Stretches of reasoning in their order; the last may be unclosed.

    A closing mark without an opening mark ends reasoning that began before the text, or at
    the end of the block before.
    """
    blocks: list[Block] = []
    at = 0  # end of the last block
    opened: re.Match[str] | None = None
    skip = _end_of_leading_json(text)
    for mark in _marks_and_calls(text):
        if mark.start() < skip:
            continue
        if mark[0] in _CLOSE_OF:
            opened = opened or mark
        elif mark.re is _CALL:
            if opened is None:
                skip = _end_of_call(text, mark)
        elif opened is None or _CLOSE_OF[opened[0]] == mark[0]:
            start, inner = (at, at) if opened is None else opened.span()
            block = Block(
                start, mark.end(), text[start:inner], text[inner : mark.start()], mark[0]
            )
            blocks.append(block)
            at, opened = mark.end(), None
    if opened is not None:
        inner_text = text[opened.end() :]
        blocks.append(Block(opened.start(), len(text), opened[0], inner_text, ""))
    return blocks


def opening_of(prompt_end: str) -> str:
    """The opening mark, with white space, at the end of a prompt; "" without a mark.

    Example: "<|im_start|>assistant\\n<think>\\n" gives "<think>\\n".
    """
    mark = _OPENED.search(prompt_end)
    return mark.group() if mark else ""


def cut_at_stop(text: str, stop: str | Sequence[str] | None) -> str:
    """Text before the first stop string, which OpenAI's APIs do not return."""
    words = [stop] if isinstance(stop, str) else stop or []
    places = [at for word in words if word and (at := text.find(word)) >= 0]
    return text[: min(places, default=len(text))]


def harmony_messages(text: str) -> Iterator[HarmonyMessage]:
    """Messages of a gpt-oss sample, whose special tokens are in ``text``."""
    for match in _HARMONY.finditer(text):
        recipient = _RECIPIENT.search(match["to"]) or _RECIPIENT.search(match["header"])
        yield HarmonyMessage(
            channel=match["channel"],
            recipient=recipient[1] if recipient else None,
            body=match["body"],
            ended=bool(match["end"]) or match.end() < len(text),
        )


def _harmony_parts(messages: list[HarmonyMessage]) -> Parts:
    thoughts, final, called = [], [], False
    for message in messages:
        if message.recipient is not None:
            called = True
        elif message.channel == "analysis":
            thoughts.append(message.body.strip())
        else:
            final.append(message.body)
    return Parts(tuple(thoughts), "".join(final) if final or called else None)


def _marks_and_calls(text: str) -> list[re.Match[str]]:
    used = (mark for mark in _MARK.finditer(text) if not _is_quoted(text, mark))
    return sorted([*used, *_CALL.finditer(text)], key=lambda mark: mark.start())


def _is_quoted(text: str, mark: re.Match[str]) -> bool:
    """Whether a mark stands between two equal quotation marks: mentioned, not used.

    A quotation mark that closes an earlier quotation of its line does not open a new
    quotation, except an apostrophe, which may have had no opening.
    """
    before = text[mark.start() - 1 : mark.start()]
    if not before or before not in _QUOTES or not text.startswith(before, mark.end()):
        return False
    line = text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()]
    return before == "'" or line.count(before) % 2 == 1


def _end_of_call(text: str, mark: re.Match[str]) -> int:
    """End of the call that ``mark`` begins; the end of the mark if no call can be read."""
    at = mark.end()
    if mark[0].startswith("<function=") or _FUNCTION.match(text, at):
        end = text.find(_FUNCTION_END, at)
        return at if end < 0 else end + len(_FUNCTION_END)
    name = _NAME.match(text, at)
    return _end_of_json(text, name.end() if name else at)


def _end_of_leading_json(text: str) -> int:
    """End of the JSON values, separated by ; or , that a text starts with."""
    at, end = len(text) - len(text.lstrip()), -1
    while at > end:
        end = at = _end_of_json(text, at)
        between = _BETWEEN_JSON.match(text, end)
        at = between.end() if between and end > 0 else end
    return at


def _end_of_json(text: str, at: int) -> int:
    """End of the JSON value at ``at``; ``at`` without an object or a list."""
    if text[at : at + 1] not in ("{", "["):
        return at
    try:
        return read_json_value(text, at)[1]
    except MalformedCall:
        return at
