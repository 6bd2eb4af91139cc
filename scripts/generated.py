"""Shared code of the generators of documents: write the page, or with --check only compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def refresh(about: str, target: Path, page: Callable[[str], str], stale: str) -> int:
    """Bring ``target`` up to date; ``page`` makes the new text of the old text.

    Returns the exit status: 1 if only comparing was asked for and the texts differ.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare only; exit 1 if different"
    )
    check = parser.parse_args().check
    current = target.read_text(encoding="utf-8") if target.exists() else ""
    wanted = page(current)
    if wanted == current:
        return 0
    if check:
        print(stale, file=sys.stderr)
        return 1
    target.write_text(wanted, encoding="utf-8")
    print(f"wrote {target.name}")
    return 0
