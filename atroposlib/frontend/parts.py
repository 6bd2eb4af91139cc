"""HTML parts of every page: shell with its content policy, conversations and tokens. Pure.

Templates escape every value; the functions here that return Markup escape their text. HTML of
Markdown text has no links and no images; pictures are data URLs of messages. A page runs its own
script only and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from atroposlib.wire.images import is_picture, picture_url

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

HERE = Path(__file__).parent
STYLE = (HERE / "page.css").read_text(encoding="utf-8")
# Label of a token by the least probability of its kind; a token that is not trained has none.
PROBABILITIES = {"p > 0.9": 0.9, "p > 0.5": 0.5, "p > 0.1": 0.1, "p > 0.01": 0.01, "rare": -1}
LEGEND = [("m", "not trained"), *((f"p{i}", label) for i, label in enumerate(PROBABILITIES))]


PICTURE_CHARACTERS = 2**20  # limit for the data URL of a picture on a page


class Box(NamedTuple):
    """Box of a conversation."""

    label: str
    kind: str  # class of its style: call, tool or ""
    html: Markup


def render_page(template: Path, title: str, *, script: str = "", **values: Any) -> str:
    """Render a template that extends ``page.html``."""
    scripts = f"script-src {_digest(script)}; " if script else ""
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digest(STYLE)}; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )
    shell = {"title": title, "policy": policy, "style": STYLE, "script": script}
    return _templates(template.parent).get_template(template.name).render(**shell, **values)


def render_part(name: str, *values: Any) -> str:
    """Render a macro of ``parts.html``."""
    module = _templates(HERE).get_template("parts.html").module
    return str(getattr(module, name)(*values)).strip()


@lru_cache
def _templates(folder: Path) -> jinja2.Environment:
    loader = jinja2.FileSystemLoader([folder, HERE])
    made = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["number"] = lambda value: "none" if value is None else f"{value:.4g}"
    made.filters["sign"] = get_score_class
    return made


def get_score_class(score: float | None) -> str:
    """The CSS class of a reward by its sign; no reward looks like zero."""
    if score is not None and score > 0:
        return "reward-positive"
    return "reward-negative" if score is not None and score < 0 else "reward-zero"


def _digest(source: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return Markup("'sha256-{}'").format(digest)


# --- conversations -----------------------------------------------------------------------


def turns(message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Label and content of a message, and of each of its tool calls."""
    content, calls = message.get("content"), message.get("tool_calls")
    if content or not calls:
        yield str(message.get("role", "")), content
    for call in calls if isinstance(calls, list) else ():
        match call:
            case {"function": {"name": name, "arguments": arguments}}:
                yield "tool call", f"{name}({arguments})"
            case _:
                yield "tool call", call


def conversation(messages: Iterable[Any]) -> list[Box]:
    """Boxes of messages; a message that is no mapping is a box without a label."""
    boxes = []
    for message in messages:
        for label, content in (
            turns(message) if isinstance(message, Mapping) else [("", message)]
        ):
            call = label == "tool call"
            kind = "call" if call else "tool" if label == "tool" else ""
            boxes.append(Box(label, kind, _verbatim(content) if call else _content(content)))
    return boxes


def _content(content: Any) -> Markup:
    """Text as Markdown; of a list of parts its texts and pictures."""
    if not isinstance(content, list) or not any(map(picture_url, content)):
        return _markdown(content)
    return Markup("").join(_part(part) for part in content)


def _part(part: Any) -> Markup:
    url = picture_url(part)
    if url is None:
        text = part.get("text") if isinstance(part, dict) else None
        return _markdown(part if text is None else text)
    if not is_picture(url) or len(url) > PICTURE_CHARACTERS:
        return Markup("<p>[a picture of {} characters]</p>").format(len(str(url)))
    return Markup('<img class="picture" alt="picture" src="{}">').format(url)


def _plain(content: Any) -> str:
    content = "" if content is None else content
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _verbatim(content: Any) -> Markup:
    return Markup("<pre>{}</pre>").format(_plain(content))


def _markdown(content: Any) -> Markup:
    return Markup(_renderer().render(_plain(content)))


@lru_cache(maxsize=1)
def _renderer() -> MarkdownIt:
    """Markdown renderer without HTML, links and images."""
    from markdown_it import MarkdownIt

    known = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    known.disable(["html_block", "html_inline", "link", "image", "autolink", "reference"])
    return known.disable(["escape", "entity"])  # backslashes belong to LaTeX and stay


# --- tokens ------------------------------------------------------------------------------


def label_of(logprob: float) -> str | None:
    """The label of a token that was sampled with ``logprob``; None if that is unknown."""
    p = math.exp(min(logprob, 0.0))
    return next((label for label, least in PROBABILITIES.items() if p > least), None)


def token_spans(
    texts: Sequence[str],
    tokens: Sequence[int],
    trained: Sequence[bool],
    logprobs: Sequence[float] | None,
    versions: Sequence[int] | None,
) -> Markup:
    """Tokens of a row, coloured by probability; all arguments are (T,).

    A title holds the id and, of a trained token, its logprob and policy version.
    """
    classes = {label: f"p{i}" for i, label in enumerate(PROBABILITIES)}
    spans = []
    for t, text in enumerate(texts):
        title, kind = f"id {tokens[t]}", "" if trained[t] else "m"
        if trained[t] and logprobs is not None:
            title += f", logprob {logprobs[t]:.3f}"
            kind = classes.get(label_of(logprobs[t]) or "", "")
        if trained[t] and versions is not None:
            title += f", version {versions[t]}"
        shown = escape(text.replace("\n", "↵\n"))
        spans.append(f'<span class="t {kind}" title="{escape(title)}">{shown}</span>')
    return Markup("".join(spans))
