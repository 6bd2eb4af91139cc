from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from atroposlib.run_status.heldout import HeldoutSample
from atroposlib.run_status.sources import RunSnapshot
from atroposlib.run_status.view import PlainView, open_view, panel, sparkline, step_line

ANSWER = HeldoutSample(0, "What is 4 + 3?", "It is\x1b[2J[b]many", "7", 0.25, False)
MOMENT = RunSnapshot(
    title="smollm2 [local]",
    task="sums [of two]",
    reward_words="1 for the number",
    elapsed_s=75.0,
    left_s=200.0,
    state="healthy",
    line="step 12 of 40; the trainer trains batch 13 (2 s, usual 4 s)",
    step=12,
    steps=40,
    rewards=(0.0, 0.5, 1.0),
    exacts=(0.0, 0.25),
    measures="exact 0.25  entropy 1.5",
    dropped="dropped 5 of 7 groups (same_scores)",
    heldout=((0, 0.01), (10, 0.2)),
    answers=((ANSWER, replace(ANSWER, version=10, step=10, completion="7", exact=True)),),
    generate_tokens_per_s=48.2,
    train_tokens_per_s=310.0,
    staleness_mean=0.0,
    staleness_max=1.0,
    mismatch=3.2e-6,
    server_version=11,
    trainer_version=12,
    processes=("arithmetic: paused: queue full, waits for the trainer to take a batch (2 s)",),
)


def text_of(renderable, width=110):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_the_panel_shows_every_figure():
    text = text_of(panel(MOMENT, 110, 40))
    for words in (
        "smollm2 [local]",
        "sums [of two]",
        "run  healthy: step 12 of 40; the trainer trains batch 13 (2 s, usual 4 s)",
        "12 of 40",
        "reward  1.00",
        "exact  0.25",
        "▁▁▁████",
        "▁▁▇▇",
        "about 3:20 left",
        "1 for the number",
        "0.01 at step 0 → 0.20 at step 10",
        "48 tokens/s generated, 310 trained",
        "0.0 versions, at most 1",
        "3.2e-06 nats",
        "version 11 at the server, 12 at the trainer",
        "waits for the trainer to take a batch",
        "1:15",
        "groups  dropped 5 of 7 groups (same_scores)",
        "measures  exact 0.25  entropy 1.5",
    ):
        assert words in text


def test_a_run_that_has_just_begun_shows_dashes_instead_of_numbers():
    text = text_of(panel(RunSnapshot()))
    assert "– tokens/s generated, – trained" in text
    assert "no process has reported yet" in text


def test_a_step_is_one_line_where_there_is_no_terminal():
    line = step_line(MOMENT)
    assert line.startswith("step 12/40  reward 1.00  exact 0.25  entropy 1.5  48 tok/s")
    assert "version 11  dropped 5 of 7 groups (same_scores)  1:15" in line
    assert "\n" not in line


def test_the_curve_is_squeezed_to_its_width():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert sparkline([-1.0, 2.0]) == "▁█"
    assert sparkline([]) == ""
    assert len(sparkline([0.5] * 1000)) == 48


def test_a_tall_curve_has_several_lines_and_grows_with_the_steps():
    assert sparkline([0.0, 1.0], 4, lines=2, steps=2) == "  ██\n▁▁██"
    assert sparkline([1.0], 10, steps=5) == "██"


def test_without_held_out_problems_the_panel_shows_the_newest_answers_of_the_environments():
    newest = ((0.5, "the sum is 7"), (None, "no\nnumber " + "x" * 200))
    lines = text_of(panel(replace(MOMENT, answers=(), newest=newest), 80, 24), 80).splitlines()
    at = next(at for at, line in enumerate(lines) if " answers " in line)
    assert "0.50  the sum is 7" in lines[at] and "–  no⏎number …" in lines[at + 1]
    assert {len(line) for line in lines} == {80}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
def test_the_panel_fits_the_terminal(width, height):
    crowd = replace(MOMENT, answers=MOMENT.answers * 30, title="a long name " * 20)
    lines = text_of(panel(crowd, width, height), width).splitlines()
    assert len(lines) <= height
    assert {len(line) for line in lines} == {width}
    assert any(f"{word} … ─" in lines[0] for word in ("a", "long", "name"))  # not in a word


def test_a_sample_shows_the_first_and_the_latest_answer_without_control_characters():
    text = text_of(panel(MOMENT, 110, 40))
    assert "before, step 0" in text
    assert "now, step 10" in text
    assert r"0.25  It is\x1b[2J[b]many" in text
    assert "0.25  7" in text
    assert "\x1b" not in text


def test_the_plain_view_prints_each_step_once_and_does_not_repeat_a_wait():
    console = Console(file=io.StringIO(), width=200)
    view = open_view(console, live=True)
    assert isinstance(view, PlainView)
    view.waiting("waiting for api: 1 of 60 s")
    view.waiting("waiting for api: 2 of 60 s")
    view.show(MOMENT)
    view.show(MOMENT)
    lines = console.file.getvalue().splitlines()
    assert lines == ["waiting for api: 1 of 60 s", step_line(MOMENT)]


def test_without_a_step_the_verdict_is_printed_every_thirty_seconds(monkeypatch):
    console, clock = Console(file=io.StringIO(), width=300), [0.0]
    monkeypatch.setattr("atroposlib.run_status.view.time.monotonic", lambda: clock[0])
    view = open_view(console, live=True)
    view.show(MOMENT)
    for clock[0] in (29.0, 30.0, 31.0):
        view.show(MOMENT)
    told = f"after step 12/40; healthy: {MOMENT.line}; {MOMENT.dropped}; {MOMENT.processes[0]}"
    assert console.file.getvalue().splitlines() == [step_line(MOMENT), told]


def test_the_first_warning_of_dropped_groups_is_printed_at_once():
    console = Console(file=io.StringIO(), width=300)
    view = open_view(console, live=True)
    warning = "toy: rollout, most groups dropped"
    for _ in range(2):
        view.show(RunSnapshot(steps=9, warnings=(warning,), processes=("trainer: waiting",)))
    told = f"after step 0/9; waiting: the processes start; {warning}"
    assert console.file.getvalue().splitlines() == [told]


def test_lines_are_log_records_for_a_launcher_and_where_logs_are_json(caplog):
    caplog.set_level("INFO")
    console = Console(file=io.StringIO())
    view = open_view(console, live=True, as_logs=True)
    view.show(replace(MOMENT, step=13))
    view.show(replace(MOMENT, step=13))
    assert [line[:10] for line in caplog.messages] == ["step 13/40"]
    assert console.file.getvalue() == ""
