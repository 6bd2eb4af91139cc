"""An app in a thread: its URL, its port, and its end with the block."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse

from atroposlib.processes import free_port
from atroposlib.testing.serving import serve_in_thread


def test_an_app_answers_within_the_block_and_its_port_is_free_after_it():
    port = free_port()
    for _ in range(2):
        with serve_in_thread(PlainTextResponse("in"), port) as url:
            assert url == f"http://127.0.0.1:{port}"
            assert httpx.get(url).text == "in"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
