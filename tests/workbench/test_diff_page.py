"""The comparison on a terminal of 80 columns, and as a file."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from atroposlib.workbench.diff_page import diff_file, short_count, short_digest, terminal_parts
from atroposlib.workbench.run_diff import diff_of_runs
from atroposlib.workbench.run_folders import run_at
from tests.ui.rendered import rendered
from tests.workbench.made_runs import make_run

HOSTILE = "<script>window.pwned = 1</script>\x1b[31m"


@pytest.fixture
def diff(tmp_path):
    tasks = {f"t{no}": 1.0 for no in range(30)}
    a = make_run(tmp_path / "a", lr=0.1, heldout={**tasks, HOSTILE: 0.0})
    b = make_run(tmp_path / "b", lr=0.2, heldout=dict.fromkeys([*tasks, HOSTILE], 0.0))
    for run, words in ((a, "A"), (b, "B")):
        more = {f"key{no}{'x' * 60}": f"{words}{no}{'y' * 90}" for no in range(20)}
        (run / "launch/more.yaml").write_text(json.dumps(more, indent=1))
    return diff_of_runs(run_at(str(a)), run_at(str(b)), "reward", 1.0, None)


def shown(diff):
    console = Console(file=io.StringIO(), width=80, highlight=False)
    for part in terminal_parts(diff):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_of_80_columns_and_24_lines_has_all_parts(tmp_path):
    tasks = {f"t{no}": 1.0 for no in range(30)}
    a = make_run(tmp_path / "a", lr=0.1, heldout=tasks)
    b = make_run(tmp_path / "b", lr=0.2, heldout=dict.fromkeys(tasks, 0.0))
    text = shown(diff_of_runs(run_at(str(a)), run_at(str(b)), "reward", 1.0, None))
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "trainer.lr 0.1 -> 0.2 launch/trainer.yaml:3" in text
    assert "code: atropos same (1.0 aaaaaaaa)" in text
    assert "reward over 30 items: 1.0000 -> 0.0000, difference -1.0000" in text
    assert "solved by A only: 30" in text and "and 28 more (--json has all)" in text


def test_long_and_hostile_texts_stay_within_the_width_and_steer_nothing(diff):
    text = shown(diff)
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert "settings that differ: 21, 6 shown" in text


def test_the_file_holds_settings_tasks_and_curves_as_text(diff, tmp_path):
    path = tmp_path / "diff.html"
    path.write_bytes(diff_file(diff))
    assert b"<script>window.pwned" not in path.read_bytes()
    [page] = rendered(path, "#/")
    for words in ("a → b", "trainer.lr 0.1 0.2", "sha256:aaaaaaaaaaaa same", "only A t0"):
        assert words in page.words, words
    assert "reward_mean A B by step" in page.words
    assert "reward_mean A B by sampled tokens" in page.words
    assert "more (--json has all)" not in page.words, "the table of the page has all"


def test_counts_and_digests_are_short():
    assert [short_count(n) for n in (7, 5600, 120e6, 2e9)] == ["7", "5.6k", "120M", "2G"]
    assert short_digest("1.0 sha256:0123456789ab") == "1.0 01234567"
    assert short_digest("unknown") == "unknown"
