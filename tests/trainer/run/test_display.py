from __future__ import annotations

import io

from rich.console import Console

from atroposlib.wire import Heartbeat
from example_trainer.run import display as live

RECORD = {
    "step": 3,
    "reward_mean": 0.25,
    "loss": 0.0123,
    "clip_ratio": 0.045,
    "entropy": 1.5,
    "staleness_mean": 2.0,
    "tokens_per_s": 812.0,
    "env/exact": 0.125,
    "seconds_train": 3.0,
    "seconds_wait": 0.01,
}


def drawn(records, beat=None, width=80):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(live.picture("tiny", 40, records, beat))
    return console.file.getvalue()


def test_table_shows_the_last_steps_and_the_wait_of_the_trainer():
    beat = Heartbeat(role="trainer", name="t", phase="waiting for batch", waiting_on="3 of 8")
    text = drawn([RECORD, {**RECORD, "step": 4, "loss": None}], beat)
    assert "waiting for batch: 3 of 8" in text and "4 of 40 steps" in text
    assert "0.250" in text and "4.5%" in text and "812" in text and "–" in text
    assert "train 3.0 s   env/exact 0.125" in text and "wait 0.0" not in text
    assert "starting" in drawn([])
    for line in text.splitlines():
        assert len(line) == 80


def test_live_table_is_redrawn_by_steps_and_by_heartbeats_before_sending(config):
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    table, sent = live.LiveTable("model", 100, console), []
    beat = Heartbeat(role="trainer", name="t", phase="publishing weights", waiting_on=None)
    live.relay(table, sent.append)(beat)
    table.step(RECORD)
    table.close()
    assert sent == [beat]
    assert "publishing weights" in console.file.getvalue()


def test_without_a_terminal_each_step_is_printed_as_a_line(config, caplog):
    caplog.set_level("INFO")
    display = live.open_display(None, "model", 100)
    display.step(RECORD)
    display.beat(Heartbeat(role="trainer", name="t", phase="x", waiting_on=None))
    [line] = caplog.messages
    assert line == (
        "step 3: reward_mean 0.25, loss 0.0123, clip_ratio 0.045, entropy 1.5,"
        " staleness_mean 2, env/exact 0.125, 3.0 s"
    )
