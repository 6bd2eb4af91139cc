"""The distribution ``atropos-rl`` that holds this package, and the requirement that names it.

The distribution ``atroposlib`` of package indexes is the archived original, whose package has the
same import name. A requirement by name is written only where an index has given out ours.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from atroposlib import __version__

NAME = "atropos-rl"
_ROOT = Path(__file__).resolve().parents[3]  # a checkout, or site-packages


def requirement(extras: str = "") -> str:
    """The requirement on this distribution, with extras (``[train]``).

    A direct reference (PEP 508) to where it was installed from, by PEP 610: a repository with
    its commit, a wheel or a folder. The running checkout, where nothing is installed. Its name
    and version, if an index gave it out.
    """
    url = _installed_from()
    return f"{NAME}{extras} @ {url}" if url else f"{NAME}{extras}>={__version__}"


def extras() -> set[str]:
    """The extras of this distribution; none where it is not installed."""
    try:
        return set(distribution(NAME).metadata.get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return set()


def _installed_from() -> str | None:
    if (_ROOT / "pyproject.toml").is_file():
        return _ROOT.as_uri()
    try:
        recorded = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    if recorded is None:
        return None
    origin = json.loads(recorded)
    url, vcs = str(origin["url"]), origin.get("vcs_info")
    return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
