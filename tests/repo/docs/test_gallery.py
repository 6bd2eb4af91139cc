"""docs/gallery.md is current, and has every environment with its figures and curve."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scripts.gallery import curve, sparkline


def test_every_environment_of_the_library_is_in_the_gallery(root):
    page = (root / "docs/gallery.md").read_text(encoding="utf-8")
    names = {path.stem for path in (root / "environments/library").glob("[!_]*.py")}
    headings = {line[3:] for line in page.splitlines() if line.startswith("## ")}
    sections = headings - {"Recipes", "Environments"}
    assert sections >= names
    assert page.count("    score: 1\n") == len(sections)


def test_every_environment_has_a_row(root):
    page = (root / "docs/gallery.md").read_text(encoding="utf-8")
    paths = [*root.glob("environments/[!_]*.py"), *root.glob("environments/library/[!_]*.py")]
    rows = [line for line in page.splitlines() if line.count(" | ") == 6][1:]
    assert len(rows) == len(paths)


CURVE = {
    "environment": "letters",
    "settings": {"env.group_size": 8},
    "model": "SmolLM2-135M",
    "seeds": [0, 1],
    "steps": 4,
    "held_out_before": [0.1, 0.2],
    "held_out_after": [0.5, 0.25],
    "reward": [[0.0, 0.25, 0.5, 1.0], [0.2, 0.2, 0.2, 0.2]],
}


def test_a_recorded_curve_has_a_row_for_each_seed_and_its_command():
    lines = curve(CURVE, floor=0.0, best=1.0)
    assert "| 0 | 0.00 `▁▃▅█` 1.00 | 0.10 to 0.50 |" in lines
    assert "| 1 | 0.20 `▂▂▂▂` 0.20 | 0.20 to 0.25 |" in lines
    command = " ".join(line.strip() for line in lines if line.startswith("    "))
    place = "--environment environments/library/letters.py"
    assert command == f"atropos quickstart {place} --steps 4 --env.group_size 8"


def test_bars_are_means_where_there_are_many_values_and_stay_in_range():
    assert sparkline([0.0, 1.0] * 40, 0.0, 1.0) == "▅" * 40
    assert sparkline([-1.0, 2.0], 0.0, 1.0) == "▁█"


def test_every_recorded_curve_is_of_an_environment_of_the_library(root):
    for path in (root / "docs/curves").glob("*.json"):
        recorded = json.loads(path.read_text(encoding="utf-8"))
        assert recorded.keys() >= CURVE.keys(), path
        assert (root / f"environments/library/{path.stem}.py").is_file(), path


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the page is made with Python 3.11"
)
def test_the_gallery_is_current(root):
    command = [sys.executable, "scripts/gallery.py", "--check"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
