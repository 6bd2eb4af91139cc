"""Structured logs on stderr: one line per event, as JSON or key=value, without secrets.

Bodies, query strings and the Authorization header are never passed to a logger. The formatter
redacts tokens and passwords in all other text, such as that of an exception.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from starlette.types import ASGIApp, Receive, Scope, Send

from atroposlib.api.guards.auth import route_of
from atroposlib.api.guards.tokens import TOKEN_PREFIX
from atroposlib.utils.http_server import Exchange

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
REDACTED = "[redacted]"
_FIELDS = "fields"
_SECRET = re.compile(
    rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{16,}}"
    r"|(?i:\b(?:bearer|basic) +[A-Za-z0-9._~+/=-]{8,})"
    r"|(?i:(?<=://)[^/\s:@]*:[^/\s@]+(?=@))"  # postgresql://user:password@host
)
_PLAIN = re.compile(r"[A-Za-z0-9_.:/{}@\[\]+-]+")  # values that need no quotes
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # one event is one line
_requests = logging.getLogger("atroposlib.api.web.routing")


def redact(text: str) -> str:
    """``text`` without tokens and passwords."""
    return _SECRET.sub(REDACTED, text)


class _Formatter(logging.Formatter):
    def __init__(self, write: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": self._time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return redact(self._write(event))

    @staticmethod
    def _time(seconds: float) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return f"{clock}.{int(seconds * 1000) % 1000:03d}Z"


def _as_json(event: dict[str, Any]) -> str:
    return json.dumps(event, default=str)


def _as_text(event: dict[str, Any]) -> str:
    words = [f"{event.pop('time')} {event.pop('level'):<7} {event.pop('message')}"]
    exception = event.pop("exception", None)
    words += [f"{key}={_quoted(value)}" for key, value in event.items()]
    line = _CONTROL.sub(lambda found: repr(found[0])[1:-1], " ".join(words))
    return line if exception is None else f"{line}\n{exception}"


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def configure(style: str, level: str, stream: TextIO | None = None) -> logging.Handler:
    """Send all logs of this process to stderr, in one of ``FORMATS``. Call it once."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Formatter(_as_json if style == "json" else _as_text))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("atroposlib").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(
        max(logging.WARNING, getattr(logging, level.upper()))
    )
    return handler


class RequestLog:
    """ASGI middleware: one line per request with route, status, duration and bytes.

    Level debug for 2xx and 3xx, info for 4xx and 503, error for other 5xx.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = Exchange(receive, send)
        began = time.perf_counter()
        try:
            await self.app(scope, seen.receive, seen.send)
        finally:
            self._note(scope, seen, time.perf_counter() - began)

    def _note(self, scope: Scope, seen: Exchange, seconds: float) -> None:
        level = _level(seen.status)
        if not _requests.isEnabledFor(level):
            return
        fields = {
            "method": scope["method"],
            # Known routes only: any other path is arbitrary text.
            "route": route_of(scope["method"], scope["path"]) or "unknown",
            "status": seen.status,
            "ms": round(seconds * 1000, 1),
            "bytes_in": seen.bytes_in,
            "bytes_out": seen.bytes_out,
        }
        _requests.log(level, "request", extra={_FIELDS: fields})


def _level(status: int) -> int:
    if status < 400:
        return logging.DEBUG
    return logging.ERROR if status >= 500 and status != 503 else logging.INFO
