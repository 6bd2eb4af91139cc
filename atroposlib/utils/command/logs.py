"""Logs of all processes on stderr: a line per event, as text or JSON, without secrets.

    2026-11-22T09:30:00.123Z info    run-api  request method=POST status=201

Bodies, query strings and the Authorization header are never passed to a logger. The formatter
redacts tokens and passwords in all other text, also in the text of an exception.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import datetime, timezone
from typing import IO, Any
from unicodedata import category

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
FIELDS = "fields"  # extra={"fields": {...}} of a record: words of its line, keys of its object
REDACTED = "[redacted]"
LINES = "\n\t"  # what ``printable`` keeps of a text of several lines
# prefix of every token of this package; secret scanners look for it as well
TOKEN_PREFIX = "atr_"
OURS = ("atroposlib", "example_trainer", "environments", "__main__")
# Libraries that log every request or file at level info.
NOISY = (
    "uvicorn",
    "httpx",
    "httpcore",
    "openai",
    "urllib3",
    "asyncio",
    "filelock",
    "fsspec",
    "huggingface_hub",
    "datasets",
    "transformers",
    "torch",
    "matplotlib",
    "markdown_it",
)
_SECRET = re.compile(
    rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{16,}}"
    r"|(?i:\b(?:bearer|basic) +[A-Za-z0-9._~+/=-]{8,})"
    r"|(?i:(?<=://)[^/\s:@]*:[^/\s@]+(?=@))"  # postgresql://user:password@host
)
_PLAIN = re.compile(r"[A-Za-z0-9_.:/{}@\[\]+-]+")  # values that need no quotes


def redact(text: str) -> str:
    """``text`` without tokens and passwords."""
    return _SECRET.sub(REDACTED, text)


def printable(text: str, kept: str = "") -> str:
    """``text`` with control characters as escapes, except characters of ``kept``.

    All text of a model passes here on its way to a terminal, which it must not steer.
    """

    def is_safe(character: str) -> bool:
        return character.isprintable() or character in kept or category(character) == "Zs"

    if text.isprintable():
        return text
    return "".join(c if is_safe(c) else repr(c)[1:-1] for c in text)


class _Formatter(logging.Formatter):
    def __init__(self, process: str, style: str) -> None:
        super().__init__()
        self.process, self.style = process, style

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "process": self.process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return redact(json.dumps(event, default=str) if self.style == "json" else _text(event))


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(event: dict[str, Any]) -> str:
    moment, level, process, source, message = (event.pop(key) for key in tuple(event)[:5])
    exception = event.pop("exception", None)
    if source.partition(".")[0] not in OURS:
        event["logger"] = source
    words = [f"{moment} {level:<7} {process}  {message}"]
    words += [f"{key}={_quote(value)}" for key, value in event.items()]
    line = printable(" ".join(words))  # an event is a single line
    return line if exception is None else f"{line}\n{printable(exception, LINES)}"


def _quote(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class ProcessHandler(logging.StreamHandler[IO[str]]):
    """Handler of all logs of a process; without a given stream it writes to today's stderr."""

    def __init__(self, formatter: _Formatter, stream: IO[str] | None) -> None:
        self._given = stream
        super().__init__(stream or sys.stderr)
        self.setFormatter(formatter)
        self.style = formatter.style

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = self._given or sys.stderr  # a live view replaces sys.stderr
        super().emit(record)


class _Forwarding(logging.Logger):
    """Logger of a library that would add a handler with a format of its own."""

    def addHandler(self, hdlr: logging.Handler) -> None:
        """Leave the records to the handler of the process."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, True if name == "propagate" else value)


def configure(
    process: str, form: str, level: str, stream: IO[str] | None = None
) -> logging.Handler:
    """Send all logs of this process to stderr, as text or JSON (``FORMATS``)."""
    root, least = logging.getLogger(), getattr(logging, level.upper())
    for old in root.handlers[:]:
        if isinstance(old, ProcessHandler):
            root.removeHandler(old)
    handler = ProcessHandler(_Formatter(process, form), stream)
    root.addHandler(handler)
    root.setLevel(max(logging.INFO, least))
    library = logging.getLogger("transformers")
    library.__class__, library.propagate = _Forwarding, True
    library.handlers.clear()
    for name in OURS:
        logging.getLogger(name).setLevel(least)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, least))
    if form == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_exception
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # a bar is no JSON
    return handler


def style() -> str:
    """The format of this process's logs; text before :func:`configure`."""
    handlers = logging.getLogger().handlers
    return next(
        (handler.style for handler in handlers if isinstance(handler, ProcessHandler)), "text"
    )


def _log_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    logging.getLogger(OURS[0]).critical("%s", error, exc_info=(kind, error, trace))


def file_problem(error: OSError) -> str:
    """The file or folder, and why it cannot be used: ``/data/q: read-only file system``."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"


def report(process: str, message: object) -> None:
    """Write the last line of a command: ``process: message``, or a JSON line where logs are."""
    if isinstance(message, OSError):
        message = file_problem(message)
    if style() == "json":
        logging.getLogger(OURS[0]).error("%s", message)
    else:
        text = printable(redact(str(message)), LINES)
        print(f"{process}: {text}", file=sys.stderr, flush=True)
