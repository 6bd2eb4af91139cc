"""Parts of pages: nothing a model writes becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html

import pytest

from atroposlib.frontend.parts import (
    HERE,
    PICTURE_CHARACTERS,
    conversation,
    label_of,
    render_page,
    token_spans,
    turns,
)

EVIL = "<script>alert(1)</script>\"'><img src=http://evil.example/i.png>"


def test_a_page_runs_its_own_script_only():
    page = render_page(HERE / "page.html", EVIL, script="1")
    digest = base64.b64encode(hashlib.sha256(b"1").digest()).decode()
    assert f"script-src 'sha256-{digest}'; " in html.unescape(page)
    assert "unsafe" not in page and page.count("<script>") == 1
    assert "script-src" not in render_page(HERE / "page.html", "t")


def test_a_message_without_a_tool_call_is_one_turn_even_if_empty():
    assert list(turns({"role": "user", "content": ""})) == [("user", "")]


def picture(url):
    return {"type": "image_url", "image_url": {"url": url}}


def test_pictures_of_messages_are_shown_from_data_urls_only():
    url = "data:image/png;base64,iVBORw=="
    parts = [{"type": "text", "text": f"*see* {EVIL}"}, picture(url), picture(EVIL)]
    large = picture(f"data:image/png;base64,{'A' * PICTURE_CHARACTERS}")
    addresses = [picture("https://evil.example/i.png"), picture(f'{url}" onload="x')]
    [box] = conversation([{"role": "user", "content": [*parts, large, *addresses]}])
    assert box.html.count("<img") == 1 and f'src="{url}"' in box.html
    assert "<em>see</em>" in box.html and "<script>" not in box.html
    assert box.html.count("[a picture of") == 4 and len(box.html) < 2000


def test_calls_and_results_of_tools_have_boxes_of_their_own():
    call = {"function": {"name": "add", "arguments": "*1*"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    boxes = conversation([said, {"role": "tool", "content": EVIL}, EVIL])
    assert [box.kind for box in boxes] == ["call", "tool", ""]
    assert boxes[0].html == "<pre>add(*1*)</pre>"
    assert not any("<img" in box.html or "<script" in box.html for box in boxes)


def test_text_of_tokens_is_escaped_and_lines_are_marked():
    spans = token_spans([EVIL, "\n"], [1, 2], [True, False], [float("nan"), 0.0], None)
    assert "<img" not in spans and "<script" not in spans
    assert spans.endswith('<span class="t m" title="id 2">↵\n</span>')


@pytest.mark.parametrize(
    "logprob, label",
    [(0.0, "p > 0.9"), (-1.0, "p > 0.1"), (-99.0, "rare"), (float("nan"), None)],
)
def test_labels_go_by_probability(logprob, label):
    assert label_of(logprob) == label
