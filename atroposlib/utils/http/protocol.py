"""HTTP protocol of uvicorn for servers that any client may reach: a deadline, and foreign upgrades."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0  # limit for the head of a request, from the connection or its first byte


def head_deadline(seconds: float = HEAD_S) -> type[asyncio.Protocol]:
    """The HTTP protocol of uvicorn that closes connections without a whole head in time.

    uvicorn waits for the rest of a head without a bound. Between two requests its own
    ``timeout_keep_alive`` counts.
    """
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class HeadDeadline(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self.parser = PlainParser(self)  # type: ignore[assignment]

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arm()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._arm()

        def on_headers_complete(self) -> None:
            self._disarm()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def _arm(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.abort)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return HeadDeadline


class PlainParser:
    """Parser for uvicorn's protocols that reads a request with an unknown ``Upgrade`` as plain HTTP.

    RFC 9110, 7.8 lets a server ignore the field, and Java's client sends ``Upgrade: h2c`` by default.
    httptools ends that request at its head, without the body, and reads the rest as a new
    request.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        # whether the request whose head has just ended asks for an upgrade
        self._is_upgrade = False
        self.on_message_begin, self.on_url = protocol.on_message_begin, protocol.on_url
        self.on_header, self.on_body = protocol.on_header, protocol.on_body
        self._parser = self._new_parser()

    def _new_parser(self) -> Any:
        import httptools

        parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # older releases of httptools, as in uvicorn
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def get_method(self) -> bytes:
        return bytes(self._parser.get_method())

    def get_http_version(self) -> str:
        return str(self._parser.get_http_version())

    def should_keep_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        return bool(self._parser.should_upgrade())

    def on_headers_complete(self) -> None:
        connects = self._parser.get_method() == b"CONNECT"
        upgrades = self._parser.should_upgrade() and not self._protocol._should_upgrade()
        self._is_upgrade = upgrades and not connects
        if not self._is_upgrade:
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_upgrade:
            self._protocol.on_message_complete()

    def feed_data(self, data: bytes) -> None:
        import httptools

        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._is_upgrade:
                    raise
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self._is_upgrade, self._parser = False, self._new_parser()

    def _head_without_upgrade(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._protocol.url, version)]
        for name, value in self._protocol.headers:
            if name == b"connection":
                options = value.split(b",")
                value = b",".join(o for o in options if o.strip().lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])
