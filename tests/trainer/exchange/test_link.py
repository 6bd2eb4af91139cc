"""Checkpoints of another project's trainer, as the link notes them."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.exchange.link import HELD, Link, held_by
from example_trainer.model.model_dir import TrainerState, write_state


def test_a_checkpoint_names_the_batch_that_it_holds(tmp_path):
    state = TrainerState("run", 5, 5, batch_no=7, incarnation=2)
    (tmp_path / HELD).mkdir()
    write_state(tmp_path / HELD, state)
    assert held_by(tmp_path) == state


def test_without_a_checkpoint_training_begins_before_the_first_batch():
    assert held_by(None) == TrainerState("", 0, 0, None)


def test_a_checkpoint_of_another_program_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path} has no folder {HELD}"):
        held_by(tmp_path)


def test_algorithms_of_environments_are_refused_because_the_loss_is_of_another_project(
    tmp_path,
):
    settings = {"model_name": "m", "algorithms": {"gsm8k": {"loss": "cispo"}}}
    with pytest.raises(ConfigError, match="algorithms: the loss is that of the other project"):
        Link(settings, TrainerState("", 0, 0, None), tmp_path)
