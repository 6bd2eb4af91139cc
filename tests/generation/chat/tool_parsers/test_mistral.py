"""Both formats of Mistral: a list after the tag, and a name with arguments."""

from __future__ import annotations

import pytest

from atroposlib.generation.chat.tool_parsers.json_formats import MistralParser
from atroposlib.generation.chat.tool_parsers.parsing import FoundCall

CALLS = [FoundCall("f", '{"a": 1}'), FoundCall("g", "{}")]


@pytest.mark.parametrize(
    "raw",
    [
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}',
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
        '[TOOL_CALLS]f[CALL_ID]c4K9x[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]d2[ARGS]{}',
    ],
)
def test_every_mistral_form_parses_to_the_same_calls(raw: str) -> None:
    parsed = MistralParser().parse(f"Hm.{raw}", [])
    assert parsed is not None
    assert (parsed.content, parsed.calls) == ("Hm.", CALLS)


def test_text_between_named_calls_makes_them_malformed() -> None:
    assert MistralParser().parse("[TOOL_CALLS]f{} then [TOOL_CALLS]g{}", []) is None
    assert MistralParser().parse("[TOOL_CALLS]{}", []) is None


def test_an_empty_list_of_calls_is_rendered_as_empty_text() -> None:
    assert MistralParser().write([]) == ""
