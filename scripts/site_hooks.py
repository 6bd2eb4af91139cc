"""Hooks of mkdocs.yml: pages from outside docs/, links, command help and llms.txt.

on_files          pages that live outside docs/, and notebooks as pages
on_page_markdown  relative links of the repository become links of the site
on_page_content   drawings become part of the page, so that they follow its colours
on_post_build     llms.txt, the Markdown of each page, and a check that nothing is remote
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Path in the repository -> path of the page on the site.
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONFIG.md": "reference/settings.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/vulnerabilities.md",
    "SLURM.md": "slurm.md",
    "benchmarks/README.md": "benchmarks.md",
    "environments/README.md": "ready-environments.md",
    "docs/examples/one_group.ipynb": "examples/one_group.md",
    "docs/examples/calculator.ipynb": "examples/calculator.md",
    "docs/examples/self_play.ipynb": "examples/self_play.md",
}
# Linked from pages, but not a page of the site.
HOME = {"README.md": "index.md", "AGENTS.md": "project/contributing.md"}
SOURCE_OF = {page: source for source, page in OUTSIDE.items()}
BRANCH = "main"
HELP = "<!-- help of every command -->"
FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ \t]*$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE_IN_TABLE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
ROLE = re.compile(r":\w+:<code>(.*?)</code>")
DRAWING = re.compile(r'<img alt="([^"]*)" src="[^"]*?images/(\w+)\.svg"\s*/?>')
REMOTE = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"https?://[^\"]*\"[^>]*>"
)
HARMLESS = re.compile(r'rel="(?:canonical|next|prev|edit)"')

markdown_of: dict[str, str] = {}  # page -> its Markdown, as the site shows it


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of OUTSIDE."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".ipynb"):
            text = notebook_page(json.loads(text))
        files.append(File.generated(config, page, content=text))
    return files


def notebook_page(notebook: dict[str, Any]) -> str:
    """Markdown of a notebook: its texts, its code and the outputs stored in it."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            shown = output.get("text") or output.get("data", {}).get("text/plain") or []
            if shown:
                parts.append(f"```text\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links, and fill in the help of the commands."""
    here = page.file.src_uri
    parts = FENCE.split(markdown)
    for index in range(0, len(parts), 2):
        parts[index] = LINK.sub(
            lambda match: site_link(match, here, config.extra["repository"] or ""),
            parts[index],
        )
        parts[index] = CODE_IN_TABLE.sub(
            lambda match: match.group().replace("\\|", "|"), parts[index]
        )
    markdown = "".join(parts)
    if HELP in markdown:
        markdown = markdown.replace(HELP, "\n".join(help_of_commands()))
    markdown_of[here] = markdown
    return markdown


def site_link(match: re.Match[str], here: str, repository: str) -> str:
    """A link of the repository as a link of the site, of the forge, or as plain text."""
    image, text, target = match.groups()
    path, mark, anchor = target.partition("#")
    if "://" in target or not path or path.startswith("mailto:"):
        return match.group()
    source = SOURCE_OF.get(here, f"docs/{here}")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = {**OUTSIDE, **HOME}.get(wanted)
    if page is None and wanted.startswith("docs/") and (ROOT / wanted).is_file():
        page = wanted.removeprefix("docs/")
    if page is not None:
        relative = posixpath.relpath(page, posixpath.dirname(here) or ".")
        return f"{image}[{text}]({relative}{mark}{anchor})"
    if repository:
        return f"[{text}]({repository.rstrip('/')}/blob/{BRANCH}/{wanted}{mark}{anchor})"
    return text


def help_of_commands() -> Iterator[str]:
    """A section per command: the output of ``--help``."""
    atropos = import_module("atroposlib.cli.atropos")
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "96"
    try:
        for words in (*atropos.COMMANDS, "run local", "run slurm", "version", "completion"):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                with contextlib.suppress(SystemExit):
                    atropos.main([*words.split(), "--help"])
            text = printed.getvalue().strip()
            if not text:
                raise PluginError(f"atropos {words} --help printed nothing")
            yield f"## atropos {words}\n\n```text\n{text}\n```\n"
    finally:
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put drawings of docs/images/ inline; show roles of docstrings as code."""

    def inline(match: re.Match[str]) -> str:
        text, name = match.groups()
        drawing = ROOT / "docs/images" / f"{name}.svg"
        svg = drawing.read_text(encoding="utf-8")
        if 'class="drawing"' not in svg:  # a plot, with separate colours
            return match.group()
        return f'<figure aria-label="{text}">{svg[svg.index("<svg") :]}</figure>'

    return DRAWING.sub(inline, ROLE.sub(r"<code>\1</code>", html))


def on_nav(nav: Any, config: MkDocsConfig, files: Files) -> None:
    """Keep the outline for llms.txt."""
    config.extra["outline"] = nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt next to the pages.

    Raises:
        PluginError: a page loads something from another machine.
    """
    site = Path(config.site_dir)
    for name, text in markdown_of.items():
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += outline(config.extra["outline"].items)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = "\n\n".join(markdown_of[name] for name in sorted(markdown_of))
    (site / "llms-full.txt").write_text(whole, encoding="utf-8")
    for page in sorted(site.rglob("*.html")):
        for tag in REMOTE.findall(page.read_text(encoding="utf-8")):
            if not HARMLESS.search(tag):
                raise PluginError(f"{page.relative_to(site)} loads from elsewhere: {tag}")


def outline(items: list[Any], section: str = "") -> Iterator[str]:
    """Lines of llms.txt: a heading per section, a link and a sentence per page."""
    for item in items:
        if item.is_section:
            title = f"{section}: {item.title}" if section else item.title
            yield from ("", f"## {title}", "")
            yield from outline(item.children, title)
        elif item.is_page:
            about = first_sentence(markdown_of.get(item.file.src_uri, ""))
            yield f"- [{item.title}]({item.file.src_uri})" + (f": {about}" if about else "")


def first_sentence(markdown: str) -> str:
    """The first sentence of the first paragraph of prose; all of it if it has no full stop."""
    for paragraph in FENCE.sub("", markdown).split("\n\n"):
        text = " ".join(paragraph.split())
        if text and text[0] not in "#|<!:-*" and not text.startswith("```"):
            text = LINK.sub(lambda match: match.group(2), text)
            return re.split(r"(?<=[.])\s", text)[0]
    return ""
