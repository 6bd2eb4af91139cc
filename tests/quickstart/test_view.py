from __future__ import annotations

import io

from rich.console import Console

from atroposlib.quickstart.sources import (
    RunSnapshot,
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
