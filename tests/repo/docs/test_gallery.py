"""docs/gallery.md is current, and has every environment of the library."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_every_environment_of_the_library_is_in_the_gallery(root):
    page = (root / "docs/gallery.md").read_text(encoding="utf-8")
    names = {path.stem for path in (root / "environments/library").glob("[!_]*.py")}
    sections = {line[3:] for line in page.splitlines() if line.startswith("## ")}
    assert sections == names
    assert page.count("    score: 1\n") == len(names)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the page is made with Python 3.11"
)
def test_the_gallery_is_current(root):
    command = [sys.executable, "scripts/gallery.py", "--check"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
