from __future__ import annotations

import io
import json

from rich.console import Console

from atroposlib.quickstart.recipes import ServingEngine
from atroposlib.quickstart.sources import (
    JsonLines,
    RunSnapshot,
    TokenRate,
    counter,
    largest,
    phase_of,
    version_of,
    wait_lines,
)
from atroposlib.quickstart.view import PlainView, open_view, panel, sparkline, step_line

MOMENT = RunSnapshot(
    title="smollm2 on local: sums [of two]",
    elapsed_s=75.0,
    phase="training",
    step=12,
    steps=40,
    rewards=(0.0, 0.5, 1.0),
    exacts=(0.0, 0.25),
    heldout=((0, 0.01), (10, 0.2)),
    generate_tokens_per_s=48.2,
    train_tokens_per_s=310.0,
    staleness_mean=0.0,
    staleness_max=1.0,
    mismatch=3.2e-6,
    server_version=11,
    trainer_version=12,
    waits=("arithmetic_0: paused: queue full, waits for the trainer to take a batch",),
)
STATUS = {
    "blocked_reason": "3 of 8 groups are queued",
    "participants": [
        {"role": "trainer", "name": "trainer", "phase": "waiting for batch", "age_s": 0.1},
        {"role": "env", "name": "sums_0", "phase": "rollout", "waiting_on": "a reply"},
    ],
}


def text_of(renderable):
    console = Console(file=io.StringIO(), width=110, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_the_panel_shows_every_figure():
    text = text_of(panel(MOMENT))
    for words in (
        "sums [of two]",
        "training",
        "12 of 40",
        "1.00  ▁▅█",
        "0.25  ▁▃",
        "step 10: 0.20",
        "48 generated, 310 trained",
        "0.0 versions, at most 1",
        "3.2e-06 nats",
        "version 11 at the server, 12 at the trainer",
        "waits for the trainer to take a batch",
        "1:15",
    ):
        assert words in text


def test_a_run_that_has_just_begun_shows_dashes_instead_of_numbers():
    text = text_of(panel(RunSnapshot()))
    assert "– generated, – trained" in text
    assert "nobody reports yet" in text


def test_a_step_is_one_line_where_there_is_no_terminal():
    line = step_line(MOMENT)
    assert line.startswith("step 12/40  reward 1.00  exact 0.25  48 tok/s generated")
    assert "\n" not in line


def test_the_curve_is_squeezed_to_its_width():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert sparkline([-1.0, 2.0]) == "▁█"
    assert sparkline([]) == ""
    assert len(sparkline([0.5] * 1000)) == 48


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


def test_who_waits_for_what_comes_from_the_status_of_the_api():
    assert wait_lines(STATUS) == (
        "sums_0: rollout, waits for a reply",
        "trainer: waiting for batch",
        "no batch yet: 3 of 8 groups are queued",
    )
    assert phase_of(STATUS) == "waiting for batch"
    assert phase_of(None) == "the rollout API does not answer"
    assert wait_lines(None) == ()


def test_a_process_that_fell_silent_is_shown_so_and_later_forgotten():
    def env(age_s):
        return {"participants": [{"role": "env", "name": "sums_0", "age_s": age_s}]}

    assert wait_lines(env(40.0)) == ("sums_0: silent for 40 s",)
    assert wait_lines(env(200.0)) == ()


def test_the_phase_is_that_of_the_trainer_heard_last():
    old = {"role": "trainer", "phase": "training", "age_s": 50.0}
    new = {"role": "trainer", "phase": "publishing weights", "age_s": 0.2}
    assert phase_of({"participants": [old, new]}) == "publishing weights"


def test_a_line_that_is_still_being_written_is_read_later(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    assert lines.read() == []
    path.write_text(json.dumps({"step": 1}) + '\n{"step"')
    assert lines.read() == [{"step": 1}]
    with path.open("a") as out:
        out.write(": 2}\n")
    assert lines.read() == [{"step": 1}, {"step": 2}]


def test_the_token_rate_leaves_out_idle_time():
    rate = TokenRate()
    for now, total in ((0.0, 0), (1.0, 100), (2.0, 100), (3.0, 100)):
        rate.note(now, total)
    assert rate.per_s == 100.0
    rate.note(4.0, 0)  # a restarted server counts from nothing
    rate.note(5.0, 200)
    assert rate.per_s == 0.7 * 100 + 0.3 * 200


def test_the_weight_version_of_either_engine_is_a_number():
    assert version_of({"weight_version": 3}) == 3
    assert version_of({"weight_version": "3"}) == 3
    assert version_of({"weight_version": "default"}) == 0
    assert version_of({"weight_version": "mine"}) is None
    assert version_of(None) is None
    assert ServingEngine("vllm") is ServingEngine.VLLM


def test_a_counter_of_vllm_is_the_sum_over_its_labels():
    text = (
        "# HELP vllm:generation_tokens_total Number of generation tokens\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 100.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="m"} 20.5\n'
        'vllm:generation_tokens_created{engine="0"} 7\n'
    )
    assert counter(text, "vllm:generation_tokens_total") == 120.5
    assert counter("", "vllm:generation_tokens_total") is None


def test_the_larger_of_two_mismatches_counts():
    assert largest({"a": 1e-5, "b": 2e-4}, "a", "b") == 2e-4
    assert largest({"a": None}, "a", "b") is None
