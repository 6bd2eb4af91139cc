"""The choice of the starting point, without an API."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atroposlib.errors import CheckpointError, ConfigError
from example_trainer.checkpoint.snapshots import Snapshots
from example_trainer.checkpoint.start import choose_start, state_document, state_in
from example_trainer.model.model_dir import TrainerState
from tests.trainer.checkpoint.lives import write_snapshot

STATE = TrainerState("run", step=3, version=2, batch_no=5)


@pytest.fixture
def choose(tmp_path, config):
    """The start of a training of 9 steps with a checkpoint of ``STATE``."""

    def made(run_id, steps=9, model=None, **settings):
        identity = {"model_name": str(tmp_path), "optimizer": "adamw"}
        document = state_document(STATE, identity, {})
        snapshot = write_snapshot(Snapshots(tmp_path, 1), 3, documents={"state": document})
        return choose_start(
            config(**settings), {**identity, **(model or {})}, steps, run_id, snapshot
        )

    return made


def test_the_checkpoint_of_this_run_has_the_version_of_its_step(choose):
    assert choose("run").state == replace(STATE, version=3)


def test_one_of_another_run_counts_its_batches_anew(choose):
    assert choose("other").state == replace(STATE, version=3, batch_no=None)


def test_one_of_a_run_that_is_over_is_left_out_unless_asked_for(choose):
    found = choose("other", steps=3)
    assert found.snapshot is None and found.state == TrainerState("other", 0, 0, None)
    assert choose("other", steps=3, recover_mode="resume").snapshot is not None


def test_other_settings_are_refused_in_the_same_run_only(choose):
    with pytest.raises(ConfigError, match="optimizer 'adamw' in the checkpoint, 'sgd' now"):
        choose("run", model={"optimizer": "sgd"})
    assert choose("other", model={"optimizer": "sgd"}).snapshot is None


def test_a_state_without_a_field_is_refused_by_its_file(tmp_path):
    document = {"format": 2, "run_id": "run"}
    snapshot = write_snapshot(Snapshots(tmp_path, 1), 1, documents={"state": document})
    with pytest.raises(CheckpointError, match="step_1/state.json: KeyError.'step'"):
        state_in(snapshot)
