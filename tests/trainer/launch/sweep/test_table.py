"""The table of a sweep, live and in lines."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from example_trainer.launch.sweep.table import PROGRESS_S, SweepView, TableRow, table_lines


@pytest.fixture
def row(tmp_path):
    def make(name, *rewards, state="running", **more):
        metrics = tmp_path / f"{name}.jsonl"
        steps = [{"step": i + 1, "reward_mean": reward} for i, reward in enumerate(rewards)]
        metrics.write_text("".join(json.dumps(step) + "\n" for step in steps))
        return TableRow(name, metrics, 20, state, **more)

    return make


def test_a_row_has_the_last_step_and_the_mean_of_the_last_rewards(row):
    one = row("a", 9, 1, 2, 3, 4, 5, started=10.0)
    one.refresh(75.0)
    assert one.cells() == ("a", "running", "6/20", "3.000", "1:05", "")
    new = row("b", state="new")
    new.refresh(75.0)
    assert new.cells() == ("b", "new", "0/20", "–", "", "")
    gap = row("c", None, 2)
    gap.refresh(0.0)
    assert gap.cells()[3] == "2.000"


def test_the_columns_are_aligned_and_control_characters_are_escaped(row):
    rows = [row("a", state="done"), row("longer", state="failed", problem="no\x1b[31m memory")]
    head, first, second = table_lines(rows)
    assert head.split("  ")[0].strip() == "run" and "reward (last 5)" in head
    assert head.index("state") == first.index("done") == second.index("failed")
    assert second.endswith("no\\x1b[31m memory") and "\x1b" not in second


def test_without_a_terminal_a_run_has_a_line_per_half_minute_and_the_table_at_the_end(row):
    out, now = io.StringIO(), [0.0]
    view = SweepView(Console(file=out, width=20), False, lambda: now[0])
    rows = [row("a", 1.0, started=0.0), row("b", state="new")]
    for now[0] in (0.0, PROGRESS_S - 1, PROGRESS_S, PROGRESS_S + 1):
        view.show(rows)
    assert out.getvalue() == "a: running, step 1/20, reward 1.000, 0:30\n"
    view.close(rows)
    assert out.getvalue().splitlines()[1:] == table_lines(rows)


def test_on_a_terminal_the_table_is_live_and_stays_at_the_end(row):
    out = io.StringIO()
    view = SweepView(Console(file=out, force_terminal=True, width=200), True)
    rows = [row("a", 1.0, started=0.0)]
    view.show(rows)
    view.print_line("a: starts [1 of 1]")
    rows[0].state = "done"
    view.close(rows)
    text = out.getvalue()
    assert "running" in text and "a: starts [1 of 1]" in text
    assert text.rstrip().splitlines()[-1] == table_lines(rows)[-1]
