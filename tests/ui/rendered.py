"""Views of an exported page, drawn by its own script over a small document in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

STUB = Path(__file__).with_name("page_stub.mjs")
SAFE = {"href", "src"}  # attributes whose values are addresses


class Drawn(NamedTuple):
    """What a view holds; ``attributes`` are (element, name, value)."""

    text: str
    run: str
    nav: list[str]
    tags: dict[str, int]
    attributes: list[list[str]]
    charts: list[dict[str, Any]]

    @property
    def addresses(self) -> set[str]:
        return {value for _, name, value in self.attributes if name in SAFE}

    @property
    def words(self) -> str:
        """The text with one space between words."""
        return " ".join(self.text.split())


def rendered(page: Path, *addresses: str) -> list[Drawn]:
    """The views at ``addresses`` (``#/rollouts``); skips without node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    command = [node, str(STUB), str(page), *addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [Drawn(**json.loads(line)) for line in done.stdout.split("\n") if line]
