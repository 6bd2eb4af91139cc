"""Hostile text in a real browser: view-run and the page of process load and run nothing of it."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import httpx
import msgspec
import pytest

from atroposlib.frontend.jsonl2html import generate_html
from atroposlib.testing.tiny import ASCII_ALPHABET, write_char_tokenizer
from tests.cli.view_run.test_view_run import page_of
from tests.trainer.rows import scored
from tests.ui.conftest import browser, tab  # noqa: F401 (fixtures)

pytestmark = pytest.mark.slow
HOSTILE = (
    "<script>window.pwned = 1</script><img src=http://evil.example/i.png onerror='window.pwned = 1'>"
    "![x](http://evil.example/i.png) [x](javascript:window.pwned=1) <svg/onload=window.pwned=1>"
    "<link rel=stylesheet href=http://evil.example/c.css>"
)


def dot() -> str:
    """A picture as base64 text."""
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.new("RGB", (2, 2)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_view_run_multimodal_shows_hostile_text_as_text(tab, api, tmp_path):  # noqa: F811
    pytest.importorskip("gradio")
    tokenizer = write_char_tokenizer(tmp_path, ASCII_ALPHABET)
    with page_of("--tokenizer", str(tokenizer), "--api-url", api, images=True) as http:
        encode = tokenizer_of(tokenizer)
        tokens = [encode(f"[Image]{HOSTILE}|{answer}{HOSTILE}") for answer in "ab"]
        group = scored(tokens, len(encode(f"[Image]{HOSTILE}|")), [1.0, -1.0])
        body = msgspec.to_builtins(group)
        body["images"] = [dot(), "http://evil.example/i.png"]
        body["metadata"] = {"item": HOSTILE}
        httpx.post(f"{api}/scored_data", json=body).raise_for_status()
        page = tab(str(http.base_url).rstrip("/")).page
        page.goto(str(http.base_url))
        page.locator(".grid-container img, .grid-wrap img").first.wait_for()
        assert page.get_by_label("Output 2").input_value() == f"b{HOSTILE}"
        assert page.get_by_label("Prompt").input_value() == f"{HOSTILE}|"


def tokenizer_of(directory: Path):
    from atroposlib.utils.tokenizers.loading import load_tokenizer_named

    loaded = load_tokenizer_named(str(directory))
    return lambda text: list(loaded(text, add_special_tokens=False)["input_ids"])


def test_the_page_of_process_shows_hostile_text_as_text(tab, tmp_path):  # noqa: F811
    call = {"function": {"name": HOSTILE, "arguments": HOSTILE}}
    said = {"role": HOSTILE, "content": HOSTILE, "tool_calls": [call]}
    group = {
        "messages": [[said], [{"role": "assistant", "content": "calm"}]],
        "scores": [1.0, 0.0],
        "finish_reasons": [HOSTILE, "stop"],
        "metadata": {"item": HOSTILE, "env": HOSTILE, "named_rewards": [{HOSTILE: 1.0}]},
    }
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps(group) + "\n")
    screen = tab("file://")
    page = screen.page
    address = f"file://{generate_html(str(path))}"
    page.goto(f"{address}#/rollouts")
    page.locator(".inner .row").first.wait_for()
    page.keyboard.press("/")
    page.keyboard.type("calm")
    page.keyboard.press("Enter")
    page.locator(".count b", has_text=re.compile("^1$")).wait_for()
    for view in ("", "group/0", "tokens/0/0"):
        page.goto(f"{address}#/{view}")
        page.locator(".view[data-ready]").wait_for()
        assert page.locator("img, main script, main link, main svg").count() == 0
    assert page.evaluate("window.pwned") is None
    assert len(screen.requests) == 1
