"""The static files of the page: size, and what their sources may contain."""

from __future__ import annotations

import hashlib
import re

import pytest

from atroposlib.ui import INDENTED, STATIC, assets, content_of
from atroposlib.ui.export import EXPORTED

MAX_BYTES = 150 * 1024
MAX_LINES = 300
VENDORED = {  # of the package uplot 1.6.32
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
# What could make markup or code of a text. Sources of the page only: uPlot writes no text of a run.
UNSAFE = "|".join(
    (
        "innerHTML|outerHTML|insertAdjacentHTML|srcdoc|<style|javascript:",
        r"document\.write|\beval\b|Function\(|setAttribute\(\"style",
    )
)
FILES = [*STATIC.iterdir(), *EXPORTED.iterdir()]
OURS = sorted(path for path in FILES if path.name not in VENDORED)


def test_the_page_stays_small():
    assert sum(len(content) for content, _ in assets().values()) <= MAX_BYTES
    for path in OURS:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, path.name


def test_the_vendored_files_are_those_of_the_package():
    for name, digest in VENDORED.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_source_can_turn_a_text_into_markup_or_code(path):
    text = path.read_text(encoding="utf-8")
    assert not re.findall(UNSAFE, text)
    if path.suffix == ".html":
        assert not re.search(r"\sstyle=|\son\w+=|<script>", text)
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^\s\"'`<>)]+", text)) <= allowed


# Only the API judges a run: the page shows the verdict and derives nothing of its own.
DERIVED = r"blocked_reason|waiting_on|\.stalled|age_s\s*[<>]|SILENT_S"


def test_the_page_derives_no_state_of_a_run():
    sources = [path for path in OURS if path.suffix == ".js"]
    assert [path.name for path in sources if re.search(DERIVED, path.read_text())] == []
    assert "verdict" in (STATIC / "overview.js").read_text()


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_text_spans_lines_because_indentation_is_left_out(path):
    if path.suffix in INDENTED:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.count("`") % 2] == []


def test_files_are_sent_without_indentation_and_comments():
    script, source = assets()["dom.js"][0], (STATIC / "dom.js").read_bytes()
    lines = [line.strip().partition(b" // ")[0].rstrip() for line in source.splitlines()]
    sent = [line for line in lines if line and not line.startswith(b"//")]
    assert script.splitlines() == sent and len(sent) < len(lines)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_two_slashes_between_spaces_begin_a_comment_and_are_in_no_text(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        code, slashes, _ = line.partition(" // ")
        assert not slashes or all(code.count(mark) % 2 == 0 for mark in "\"'`"), line


def test_a_style_is_sent_without_spaces_that_have_no_meaning(tmp_path):
    style = tmp_path / "a.css"
    style.write_text(
        'a > b :hover { margin: 0 2px; content: "x y"; font: 1px/2 var(--a), serif; }\n'
    )
    assert (
        content_of(style)
        == b'a > b :hover{margin:0 2px;content:"x y";font:1px/2 var(--a),serif;}\n'
    )
