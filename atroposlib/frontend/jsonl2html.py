"""HTML page of scored groups: ``python -m atroposlib.frontend.jsonl2html groups.jsonl``.

Text of a model is shown and never executed. Markdown is rendered (paragraphs, code, tables,
emphasis); HTML, links and images are shown as text. The page's content security policy forbids
all scripts and resources except those of this template.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

logger = logging.getLogger(__name__)

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
details { border: 1px solid #ccc; border-radius: 6px; margin: .5rem 0; padding: .5rem 1rem }
summary { cursor: pointer; font-weight: 600 }
.item { border-left: 4px solid #999; margin: 1rem 0; padding-left: 1rem }
.text { overflow-wrap: anywhere } pre { overflow-x: auto; background: #f4f4f4; padding: .5rem }
table { border-collapse: collapse } th, td { border: 1px solid #ccc; padding: .2rem .5rem }
.reward-positive { border-color: #2a7d2a } .reward-negative { border-color: #b03030 }
"""
SCRIPT = """
document.addEventListener('keydown', function (event) {
  var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) { return; }
  var groups = Array.from(document.querySelectorAll('details'));
  var now = groups.findIndex(function (group) { return group.open; });
  var next = groups[Math.min(groups.length - 1, Math.max(0, now + step))];
  if (!next) { return; }
  event.preventDefault();
  groups.forEach(function (group) { group.open = group === next; });
  next.scrollIntoView({ block: 'start' });
});
"""


def get_score_class(score: float | None) -> str:
    """The CSS class of a reward by its sign; no reward looks like zero."""
    if score is not None and score > 0:
        return "reward-positive"
    return "reward-negative" if score is not None and score < 0 else "reward-zero"


def create_html_for_group(group_data: Mapping[str, Any], index: int) -> str:
    """One group as a ``<details>`` element; an empty group is an empty string."""
    messages, scores = group_data.get("messages") or [], group_data.get("scores") or []
    if len(messages) != len(scores):
        numbers = f"{len(messages)} messages, {len(scores)} scores"
        logger.warning("group %d: %s; the rest is left out", index, numbers)
    about = group_data.get("metadata") or {}
    named_R = [
        "".join(f", {name} {_shown(_number(value))}" for name, value in rewards.items())
        for rewards in about.get("named_rewards") or ()
    ]
    items = [
        f'<div class="item {get_score_class(number)}"><h4>Content {i}: reward '
        f"{_shown(number)}{html.escape(''.join(named_R[i : i + 1]))}</h4>"
        f"{_conversation(content)}</div>"
        for i, (content, number) in enumerate(zip(messages, map(_number, scores)))
    ]
    if not items:
        return ""
    task = html.escape(f": {about['item']}") if "item" in about else ""
    return f"<details><summary>Group {index}{task}</summary>{''.join(items)}</details>\n"


def _number(score: Any) -> float | None:
    """Score as a number; other values of a file are shown as none."""
    known = isinstance(score, (int, float)) and not math.isnan(score)
    return float(score) if known else None


def _shown(number: float | None) -> str:
    return "none" if number is None else f"{number:g}"


def _conversation(content: Any) -> str:
    return "".join(map(_message, content if isinstance(content, list) else [content]))


def _message(message: Any) -> str:
    if not isinstance(message, Mapping):
        return _text(message)
    return "".join(
        f"<p><strong>{html.escape(label)}</strong></p>{_text(content)}"
        for label, content in turns(message)
    )


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


def _text(content: Any) -> str:
    content = "" if content is None else content
    shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return f'<div class="text">{_markdown().render(shown)}</div>'


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    """Markdown renderer without HTML, links and images."""
    from markdown_it import MarkdownIt

    known = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    known.disable(["html_block", "html_inline", "link", "image", "autolink", "reference"])
    return known.disable(["escape", "entity"])  # backslashes belong to LaTeX and stay


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def page(title: str, body: str) -> str:
    """A whole page around ``body``, which must be escaped already."""
    policy = (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{body}<script>{SCRIPT}</script></body></html>\n"
    )


def generate_html(input_path: str, output_path: str | None = None) -> str:
    """Write the page of a jsonl file of groups next to it and return its path.

    Raises FileNotFoundError: there is no such file.
    """
    source = Path(input_path)
    target = Path(output_path) if output_path else source.with_suffix(".html")
    parts = []
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                group = json.loads(line)
            except json.JSONDecodeError as error:
                logger.warning("%s line %d is not JSON: %s", source, number + 1, error)
                continue
            if not isinstance(group, dict) or "messages" not in group or "scores" not in group:
                logger.warning("%s line %d has no messages or scores", source, number + 1)
                continue
            parts.append(create_html_for_group(group, number))
    body = "".join(parts) or "<p>There is no data to show.</p>\n"
    target.write_text(page(source.name, body), encoding="utf-8")
    return str(target)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: input file, and optionally where to write."""
    parser = argparse.ArgumentParser(description="Scored groups (jsonl) as an HTML page.")
    parser.add_argument("input_path")
    parser.add_argument("output_path", nargs="?")
    args = parser.parse_args(argv)
    try:
        print(generate_html(args.input_path, args.output_path))
    except FileNotFoundError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
