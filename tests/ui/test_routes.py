"""Routes of the page: headers, versions, and that no other file can be read."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.ui import assets


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
