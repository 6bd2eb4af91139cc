"""A repository of a few lines, to show what a figure counts."""

from __future__ import annotations

from pathlib import Path

from tests.repo.sources import Repository, Source


def repository_of(readme: str = "", pyproject: str = "", **texts: str) -> Repository:
    """Repository of files written ``atroposlib__x__y="text"`` for atroposlib/x/y.py."""
    names = {name.replace("__", "/").replace("INIT", "__init__"): name for name in texts}
    sources = tuple(Source(Path(f"{path}.py"), texts[name]) for path, name in names.items())
    return Repository(sources, readme, pyproject)
