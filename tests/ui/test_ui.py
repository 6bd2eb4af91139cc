"""The static files of the page: headers, size, and what their sources may contain."""

from __future__ import annotations

import hashlib
import re

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.ui import STATIC, assets

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
OURS = sorted(path for path in STATIC.iterdir() if path.name not in VENDORED)


@pytest.fixture
async def http():
    app = create_app()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client
    app.state.service.close()


async def test_every_file_has_the_strict_policy_and_its_type(http):
    for name, (content, _) in assets().items():
        reply = await http.get(f"/ui/{name}")
        assert (reply.status_code, reply.content) == (200, content)
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert (await http.get("/ui/app.js")).headers["content-type"].startswith("text/javascript")


async def test_a_file_that_the_browser_has_is_not_sent_again(http):
    first = await http.get("/ui/app.js")
    again = await http.get("/ui/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_no_other_file_can_be_read_through_the_page(http):
    for path in ("/ui/__init__.py", "/ui/index.html/x", "/ui/..%2f__init__.py", "/ui/%2fetc"):
        assert (await http.get(path)).status_code == 404


async def test_a_browser_at_the_root_is_sent_to_the_page_and_a_program_is_not(http):
    reply = await http.get("/", headers={"accept": "text/html,*/*"})
    assert (reply.status_code, reply.headers["location"]) == (307, "ui/")
    assert (await http.get("/ui")).headers["location"] == "ui/"
    assert (await http.get("/")).json() == {"message": "AtroposLib API"}


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
