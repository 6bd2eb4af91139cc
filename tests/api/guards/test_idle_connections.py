"""Connections without a request, over real sockets against a real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.api.guards.test_slow_clients import GET, LAST, LONG, App, ask, serving


async def test_connections_without_a_request_make_room_for_new_ones():
    app = App()
    limits = replace(LONG, sockets=4)
    async with serving(app, limits) as (server, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        while len(server.server_state.connections) < 4:
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await ask(port, GET + LAST)).endswith(b"0 bytes")
        assert await idle[0][0].read() == b""  # the oldest was closed
        for _, writer in idle:
            writer.close()
