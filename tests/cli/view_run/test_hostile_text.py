"""Hostile text in a real browser: view-run and the page of process load and run nothing of it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import httpx
import msgspec
import pytest

from atroposlib.frontend.jsonl2html import generate_html
from atroposlib.testing.tiny import ASCII_ALPHABET, write_char_tokenizer
from tests.cli.view_run.test_view_run import page_of
from tests.trainer.rows import scored

pytestmark = pytest.mark.slow
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
HOSTILE = (
    "<script>window.ran = 1</script><img src=http://evil.example/i.png onerror='window.ran = 1'>"
    "![x](http://evil.example/i.png) [x](javascript:window.ran=1) <svg/onload=window.ran=1>"
    "<link rel=stylesheet href=http://evil.example/c.css>"
)


@pytest.fixture
def tab():
    """A page of an installed Chromium, and the addresses that it asked for."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None and os.environ.get("ATROPOS_BROWSER_TESTS") != "1":
        pytest.skip("no Chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        with contextlib.closing(driver.chromium.launch(executable_path=path, args=FLAGS)) as b:
            page, asked = b.new_page(), []
            page.on("request", lambda request: asked.append(request.url))
            yield page, asked


def dot() -> str:
    """A picture as base64 text."""
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.new("RGB", (2, 2)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_view_run_multimodal_shows_hostile_text_as_text(tab, api, tmp_path):
    pytest.importorskip("gradio")
    page, asked = tab
    tokenizer = write_char_tokenizer(tmp_path, ASCII_ALPHABET)
    with page_of("--tokenizer", str(tokenizer), "--api-url", api, images=True) as http:
        encode = tokenizer_of(tokenizer)
        tokens = [encode(f"[Image]{HOSTILE}|{answer}{HOSTILE}") for answer in "ab"]
        group = scored(tokens, len(encode(f"[Image]{HOSTILE}|")), [1.0, -1.0])
        body = msgspec.to_builtins(group)
        body["images"] = [dot(), "http://evil.example/i.png"]
        body["metadata"] = {"item": HOSTILE}
        httpx.post(f"{api}/scored_data", json=body).raise_for_status()
        page.goto(str(http.base_url))
        page.locator(".grid-container img, .grid-wrap img").first.wait_for()
        assert page.get_by_label("Output 2").input_value() == f"b{HOSTILE}"
        assert page.get_by_label("Prompt").input_value() == f"{HOSTILE}|"
        assert page.evaluate("() => window.ran") is None
    assert {"/".join(url.split("/")[:3]) for url in asked} == {str(http.base_url).rstrip("/")}


def tokenizer_of(directory: Path):
    from atroposlib.utils.tokenizers.loading import load_tokenizer_named

    loaded = load_tokenizer_named(str(directory))
    return lambda text: list(loaded(text, add_special_tokens=False)["input_ids"])


def test_the_page_of_process_shows_hostile_text_as_text_and_filters(tab, tmp_path):
    page, asked = tab
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
    page.goto(f"file://{generate_html(str(path))}")
    page.keyboard.press("j")
    assert page.locator(".item").filter(visible=True).count() == 2
    page.keyboard.press("/")
    page.keyboard.type("calm")
    page.get_by_text("1 of 2 samples").wait_for()
    assert page.locator(".item").filter(visible=True).count() == 1
    assert page.locator("img, main script, main link, main a").count() == 0
    assert page.evaluate("() => window.ran") is None
    assert len(asked) == 1
