"""The page and the replies of a run as a single file, without a server and a network.

    Kept.add(replies of a group) ... -> Kept.page_data(note) -> exported_page -> one .html

Exports are ``atropos view --export``, the page beside the groups of ``process``, and the report of
a quickstart. Modules in ``exported/`` are part of exports only: answers out of the file, blocks of
a report, Markdown.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from atroposlib.text.lines import json_line
from atroposlib.ui import STATIC, content_of

EXPORTED = Path(__file__).with_name("exported")
EXPORT_BYTES = 32 * 2**20  # groups and tokens in an exported page

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_VIEW = "await import(`./${VIEWS[name][2]}.js`)"
_HEAD = re.compile(r'<link rel="icon".*?type="module"></script>', re.DOTALL)


@dataclass
class Kept:
    """Rollouts of an exported page, and the replies about their groups, up to a size."""

    max_bytes: int = EXPORT_BYTES
    rollouts: list[msgspec.Raw] = field(default_factory=list)
    replies: dict[str, msgspec.Raw] = field(default_factory=dict)
    n_bytes: int = 0
    full: bool = False  # replies were left out

    def __contains__(self, path: str) -> bool:
        return f"/explore/{path}" in self.replies

    def add(self, replies: Mapping[str, object]) -> bool:
        """Add the replies about a group, or return False if the group does not fit."""
        encoded = {path: encoded_json(reply) for path, reply in replies.items()}
        self.n_bytes += sum(map(len, encoded.values()))
        self.full = self.n_bytes > self.max_bytes
        if not self.full:
            self._put(encoded)
        return not self.full

    def append(self, row: object) -> None:
        """Add a rollout, whose group is there."""
        encoded = encoded_json(row)
        self.n_bytes += len(encoded)
        self.rollouts.append(msgspec.Raw(encoded))

    def put(self, replies: Mapping[str, object]) -> None:
        """Add replies about the run, which have no bound."""
        self._put({path: encoded_json(reply) for path, reply in replies.items()})

    def _put(self, encoded: Mapping[str, bytes]) -> None:
        self.replies |= {
            f"/explore/{path}": msgspec.Raw(reply) for path, reply in encoded.items()
        }

    def page_data(self, of: str, remedy: str, **more: Any) -> dict[str, Any]:
        """The argument of :func:`exported_page`.

        Args:
            of: number of all rollouts, for the sentence about a cut.
            remedy: what makes the selection smaller.
            more: ``blocks`` of the overview, and ``views``, names of the views with data.
        """
        note = f"{len(self.rollouts)} rollouts"
        if self.full:
            note += f" of {of}: cut at {self.max_bytes / 2**20:.3g} MB, {remedy}"
        return {"rollouts": self.rollouts, "replies": self.replies, "note": note, **more}


def exported_page(kept: Mapping[str, Any]) -> bytes:
    """The page with ``kept``: ``rollouts``, ``replies`` by path, and a ``note`` for its head.

    Scripts and styles run by their hashes only, so no text of ``kept`` can become a script.
    """
    scripts = [_text("uplot.js"), bundle()]
    style = _text("uplot.css") + _text("style.css")
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
        f"style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n<style>{style}</style>\n'
        f'<script type="application/json" id="kept">{_data(kept)}</script>\n'
    )
    end = (
        f'<script>{scripts[0]}</script>\n<script type="module">{scripts[1]}</script>\n</body>'
    )
    first = '<meta charset="utf-8">'
    guard = f'{first}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = _HEAD.sub(lambda _: head, _text("index.html").replace(first, guard))
    return page.replace("</body>", end).encode()


def bundle() -> str:
    """The modules of the page as a single script, each after its imports."""
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        source = _text(name)
        for _, imported in _IMPORT.findall(source):
            if imported not in modules:
                add(imported)
        names = ", ".join(_EXPORT.findall(source))
        source = _EXPORT.sub("", _IMPORT.sub(r'const \1 = modules["\2"];', source))
        source = source.replace(_VIEW, "modules[`${VIEWS[name][2]}.js`]")
        modules[name] = (
            f'modules["{name}"] = await (async () => {{\n{source}\nreturn {{ {names} }};\n}})();'
        )

    names = {path.name for folder in (STATIC, EXPORTED) for path in folder.glob("*.js")}
    for name in [*sorted(names - {"uplot.js", "app.js"}), "app.js"]:  # app.js starts the page
        if name not in modules:
            add(name)
    return "\n".join(["const modules = {};", *modules.values()])


def encoded_json(value: object) -> bytes:
    """JSON of any value of a file: halves of surrogate pairs are replaced."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json_line(msgspec.to_builtins(value)).encode()


def _text(name: str) -> str:
    folder = STATIC if (STATIC / name).is_file() else EXPORTED
    return content_of(folder / name).decode()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _data(kept: Mapping[str, Any]) -> str:
    """JSON in which nothing can end its element: ``<`` stands inside of strings only."""
    parts = {name: msgspec.Raw(encoded_json(value)) for name, value in kept.items()}
    text = msgspec.json.encode(parts).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
