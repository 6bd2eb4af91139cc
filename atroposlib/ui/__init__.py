"""The page of a run: static files without data, served under ``/ui/`` or exported with some."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")
# Parts of every page: routing and keys, elements, charts, colours.
SHARED = frozenset(
    "app.js api.js chart.js dom.js kept.js style.css icon.svg uplot.js uplot.css uplot.LICENSE".split()
)
# No text in these spans lines or has " // " in it.
INDENTED = (".js", ".css")
# Indentation, and lines that are comments or empty; then comments at the end of a line of code.
_LEFT_OUT = re.compile(rb"^ *//.*\n|^\n|^ +| +// .*$", re.MULTILINE)
# Spaces around the marks of a rule.
_SPACED = re.compile(rb"([{}:;,]) +| +([{}]) *")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # kept, and compared by its ETag: an upgrade shows at once
}


def content_of(path: Path) -> bytes:
    """A file of the page as a browser gets it: without indentation, comments, spaces of styles."""
    content = path.read_bytes()
    if path.suffix in INDENTED:
        content = _LEFT_OUT.sub(b"", content)
    return _SPACED.sub(rb"\1\2", content) if path.suffix == ".css" else content


@cache
def assets(*folders: Path) -> Mapping[str, tuple[bytes, dict[str, str]]]:
    """Content and headers of each static file, by its name; the page has the name ''.

    Another page over the same parts has its own files in ``folders``.
    """
    files = {}
    shared = [path for path in STATIC.iterdir() if not folders or path.name in SHARED]
    own = [path for folder in folders for path in folder.iterdir()]
    paths = {path.name: path for path in (*shared, *own)}
    for name, path in sorted(paths.items()):
        content = content_of(path)
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        about = {"content-type": TYPES[path.suffix], "etag": tag}
        files["" if name == "index.html" else name] = (content, HEADERS | about)
    return files
