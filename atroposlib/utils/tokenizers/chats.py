"""Chat templates in a sandbox as that of transformers, without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

# names of a field in templates
REASONING = ("reasoning_content", "thinking", "reasoning")
# Marks around the assistant's text in a rendered chat; removed before the text is used.
BEGIN, END = "\ue000\ue001", "\ue001\ue000"
FINAL = "\ue002\ue000\ue002"  # mark of the end of the message that is continued
Spans = list[tuple[int, int]]  # begin and end in characters


class ChatTemplates:
    """Renders chats by templates, each compiled once."""

    def render(
        self,
        template: str,
        chat: Any,
        variables: Mapping[str, Any],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        marked: bool = False,
    ) -> tuple[str, Spans]:
        """The text of a chat, and with ``marked`` the places of the assistant's texts.

        Raises ValueError: an empty chat, or contradictory options.
        """
        messages = [with_reasoning(message) for message in getattr(chat, "messages", chat)]
        if not messages:
            raise ValueError("an empty chat has no prompt: give at least one message")
        if continue_final_message and (add_generation_prompt or marked):
            raise ValueError(
                "continue_final_message goes neither with add_generation_prompt nor with "
                "return_assistant_tokens_mask"
            )
        if continue_final_message:
            messages[-1] = {**messages[-1], "content": str(messages[-1]["content"]) + FINAL}
        text = str(
            template_of(template, marked).render(
                **variables,
                messages=messages,
                tools=None if tools is None else list(tools),
                add_generation_prompt=add_generation_prompt,
            )
        )
        if continue_final_message:
            return up_to_mark(text), []
        return without_marks(text) if marked else (text, [])


@cache
def template_of(template: str, marked: bool) -> Any:
    """A template in the sandbox that transformers makes for it."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Output, TemplateData
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's text; its content stays."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            if not marked:
                return body
            return [Output([TemplateData(BEGIN)]), *body, Output([TemplateData(END)])]

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False, **options}
    )
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return sandbox.from_string(template)


def up_to_mark(text: str) -> str:
    """The text up to the end of the continued message, as the template shows that message.

    Raises ValueError: the template drops the message.
    """
    before, mark, after = text.rpartition(FINAL)
    if not mark:
        raise ValueError("continue_final_message: the chat template drops the last message")
    return before


def without_marks(text: str) -> tuple[str, Spans]:
    """The text without marks, and the places of the marked parts."""
    plain, spans, rest = "", Spans(), text
    while BEGIN in rest:
        before, _, rest = rest.partition(BEGIN)
        inside, _, rest = rest.partition(END)
        start = len(plain) + len(before)
        spans.append((start, start + len(inside)))
        plain += before + inside
    return plain + rest, spans


def mask_of(encoding: Any, spans: Spans) -> list[int]:
    """1 for each token of the spans, else 0."""
    mask = [0] * len(encoding.ids)
    for begin, end in spans:
        first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
        if first is None:  # an empty text, or a text that was cut
            break
        for place in range(first, len(mask) if not last else last + 1):
            mask[place] = 1
    return mask


def with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """``message`` with its reasoning under the names that templates read, without nulls."""
    known = {name: value for name, value in message.items() if value is not None}
    texts = [known[name] for name in REASONING if name in known]
    return {"thinking": texts[0], **known, "reasoning_content": texts[0]} if texts else known
