from __future__ import annotations

import pytest

from atroposlib.trackers.services import open_tensorboard
from tests.trackers.runs import run_of


def test_repeated_steps_replace_the_earlier_ones(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = open_tensorboard(run_of(directory=tmp_path))
    for step in (1, 2, 3):
        first.log({"train/loss": 0.5}, step)
    first.close()
    again = open_tensorboard(run_of(step=1, directory=tmp_path))
    again.log({"train/loss": 0.25}, 2)
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "night"))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert read == [(1, 0.5), (2, 0.25)]
    assert "settings/text_summary" in events.Tags()["tensors"]
