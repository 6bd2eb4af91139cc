"""The page and the replies that it shows as a single file, which needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from atroposlib.ui import STATIC

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_VIEW = "await import(`./${VIEWS[name][2]}.js`)"
_HEAD = re.compile(r'<link rel="icon".*?type="module"></script>', re.DOTALL)


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

    names = {path.name for path in STATIC.glob("*.js")} - {"uplot.js", "app.js"}
    for name in [*sorted(names), "app.js"]:  # app.js starts the page
        if name not in modules:
            add(name)
    return "\n".join(["const modules = {};", *modules.values()])


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _data(value: object) -> str:
    """JSON in which nothing can end its element: ``<`` stands inside of strings only."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
