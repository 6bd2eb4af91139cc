"""docs/wire.md matches the running API and covers every call."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from atroposlib.api.guards.auth import SCOPES_OF


def test_wire_md_is_current(root):
    command = [sys.executable, "scripts/generate_wire_doc.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PAGES = {"/docs", "/redoc", "/openapi.json", "/ui", "/ui/", "/ui/{asset}"}
FORMER = {"/lease", "/release"}  # deprecated, described with the routes that replace them


@pytest.mark.parametrize("path", sorted({path for _, path in SCOPES_OF} - PAGES - FORMER))
def test_every_call_has_an_example(root, path):
    pattern = re.sub(r"\\{(no|rank|gid|row|step)\\}", r"\\d+", re.escape(path))
    page = (root / "docs/wire.md").read_text(encoding="utf-8")
    assert re.search(rf"```http\n(GET|POST) {pattern}[?\n]", page)
