"""The head of a request has a deadline; a request for another protocol keeps its body."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from atroposlib.utils.http.protocol import head_deadline


@pytest.mark.parametrize("beginning", [b"", b"G", b"POST / HTTP/1.1\r\nhost: x\r\nx: y"])
async def test_a_connection_without_a_whole_head_is_closed(beginning):
    protocol = head_deadline(0.05)
    config = uvicorn.Config(PlainTextResponse("in"), port=0, http=protocol, log_config=None)
    config.lifespan = "off"
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # the signals belong to the test runner
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(beginning)
    try:
        assert await asyncio.wait_for(reader.read(), 600) == b""
    except ConnectionResetError:
        pass
    writer.close()
    server.should_exit = True
    await running
