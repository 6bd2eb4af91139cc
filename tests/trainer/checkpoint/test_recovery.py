"""Tests of recovery against the real rollout API: loaded state and redelivered batches."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.errors import (
    CannotRewind,
    CheckpointError,
    ConfigError,
    NotRegistered,
    RunStateError,
)
from example_trainer.advantage.roles import RoleBaselines
from example_trainer.checkpoint import shards
from example_trainer.checkpoint.recovery import RETRY_VARIABLE, Recovery
from example_trainer.model import loading, model_dir
from example_trainer.model.model_dir import TrainerState
from example_trainer.state import Frequency, Stopped, StoppedBetweenSteps
from example_trainer.update import optimizer
from example_trainer.update.step import Critic
from tests.trainer.checkpoint.lives import (
    BATCHES,
    Life,
    checkpoints,
    everything,
    learn,
    recover_directory,
    recovery_of,
)


def test_a_checkpoint_brings_back_every_bit_of_the_trainer(start, queued):
    straight = start()
    keys = [straight.step() for _ in range(BATCHES)]
    expected = everything(straight), random.random()

    again = start()
    assert again.state == straight.state
    assert keys == [[f"key {n}"] for n in range(BATCHES)]
    assert expected[0].keys() == everything(again).keys()
    for name, tensor in everything(again).items():
        assert torch.equal(tensor, expected[0][name]), name
    assert random.random() == expected[1]


def test_interrupted_runs_equal_an_uninterrupted_one(start, queued, fill, tmp_path):
    straight = start()
    keys = {n: straight.step(save=n % 2 == 0) for n in range(1, BATCHES + 1)}
    expected = everything(straight)

    queued.reset()
    fill()
    elsewhere, seen = {"save_path": str(tmp_path / "other")}, {}
    life = start(**elsewhere)
    for killed_after in (2, 3, 5, 6):  # right after a save, or with a step that is lost
        while life.state.step < killed_after:
            n = life.state.step + 1
            seen[n] = life.step(save=n % 2 == 0)
        life = start(**elsewhere)
        assert life.state.step == life.state.version == killed_after // 2 * 2
    assert seen == keys
    for name, tensor in everything(life).items():
        assert torch.equal(tensor, expected[name]), name


def test_batches_acked_after_the_checkpoint_are_redelivered_first_and_in_order(start, queued):
    life = start()
    life.step()
    saved = life.state
    lost = [life.step(save=False), life.step(save=False)]
    life.client.claim(wait_s=0)  # fetched ahead
    life = start()
    assert life.state == saved
    assert [life.step(), life.step()] == lost
    assert life.step() == ["key 3"]
    assert life.client.status().batches_acked == 4


def test_a_commit_that_its_trainer_could_not_send_is_sent_by_the_next_one(
    start, queued, monkeypatch
):
    life = start(keep_recover=1)
    with monkeypatch.context() as killed:
        killed.setattr(life.client, "commit", lambda batch_no: 0)
        life.step()
    assert life.client.status().retained_bytes > 0
    before = life.client.status().retained_bytes
    life = start(keep_recover=1)
    assert life.client.status().retained_bytes < before
    assert life.step() == ["key 1"]


def test_the_policy_version_goes_back_with_the_weights_and_forward_again(start, queued):
    life = start()
    for version in (1, 2, 3):
        life.step(save=version == 1)
        life.client.announce_version(version)
    life = start()
    assert life.client.status().policy_version == life.state.version == 1
    life.client.announce_version(2)
    assert life.client.status().policy_version == 2


def test_new_run_keeps_weights_and_optimizer_and_reads_the_queue_from_the_start(
    start, queued, post, caplog
):
    caplog.set_level("INFO")
    life = start()
    life.step()
    life.step()
    expected = everything(life)
    queued.reset()
    life = start()
    assert (life.state.step, life.state.version, life.state.batch_no) == (2, 2, None)
    assert life.state.run_id == life.client.status().run_id
    assert life.client.status().current_step == 2
    assert "in a new run" in caplog.text
    for name, tensor in everything(life).items():
        assert torch.equal(tensor, expected[name]), name
    post()
    assert life.step() == ["key 0"]
    # Of the two kept checkpoints one knows nothing of this queue: nothing may be freed yet.
    assert life.client.rewind(0).gone == 0


def test_checkpoint_of_a_finished_earlier_run_is_set_aside(start, queued, tmp_path, caplog):
    caplog.set_level("INFO")
    life = start(training_steps=2)
    life.step()
    life.step()
    queued.reset()
    life = start(training_steps=2)
    assert life.state == TrainerState(life.state.run_id, 0, 0, None)
    assert "training begins anew" in caplog.text
    assert (tmp_path / "checkpoints" / "recover_earlier" / "step_2").is_dir()
    assert checkpoints(tmp_path) == []


def test_restart_of_a_finished_run_trains_no_step(start, queued):
    life = start(training_steps=2)
    life.step()
    life.step()
    assert start(training_steps=2).state.step == 2


def test_a_checkpoint_of_other_settings_is_refused_by_name(start, queued):
    start().step()
    with pytest.raises(ConfigError, match="optimizer 'adamw' in the checkpoint, 'sgd' now"):
        start(optimizer="sgd")
    queued.reset()
    life = start(optimizer="sgd")  # another run: it moves aside
    assert life.state.step == 0


def test_resume_without_a_checkpoint_is_rejected(start, queued):
    with pytest.raises(ConfigError, match="found no whole checkpoint"):
        start(recover_mode="resume")
    start(training_steps=1).step()
    queued.reset()
    life = start(recover_mode="resume", training_steps=1)
    assert life.state.step == 1  # also one of another run, and one that is over


def test_recover_mode_fault_recovers_only_after_a_launcher_restart(start, queued, monkeypatch):
    start(recover_mode="fault").step()
    monkeypatch.setenv(RETRY_VARIABLE, "1")
    assert start(recover_mode="fault").state.step == 1
    monkeypatch.setenv(RETRY_VARIABLE, "0")
    queued.reset()
    assert start(recover_mode="fault").state.step == 0


def test_recover_mode_disabled_writes_and_reads_no_checkpoint_and_frees_batches(
    start, queued, tmp_path
):
    start().step()
    life = start(recover_mode="disabled")
    assert life.state.step == 0
    assert not life.recovery.due(life.state, epoch_ended=True)
    before = life.client.status().retained_bytes
    life.step(save=False)
    assert life.client.status().retained_bytes < before  # freed by the ack


def test_acked_batches_missing_in_the_loaded_weights_raise(start, queued, tmp_path):
    life = start()
    for _ in range(3):
        life.step()
    with pytest.raises(CannotRewind, match="2 batches after batch 0.*POST /reset_data"):
        start(save_path=str(tmp_path / "elsewhere"))
    life.step()  # the refused trainer did not fence it
    assert (
        start(save_path=str(tmp_path / "elsewhere"), recover_mode="disabled").state.step == 0
    )


def test_api_with_older_data_than_the_checkpoint_raises(start, queued, tmp_path):
    life = start()
    life.step()
    state = recover_directory(tmp_path) / "step_1" / "state.json"
    rewrite(state, batch_no=10**6)
    with pytest.raises(CannotRewind, match="batch 1000000 was never formed here"):
        start()
    life.step()  # it was not fenced


def rewrite(path: Path, **values: Any) -> None:
    """Change a file and its entry in the manifest."""
    manifest = path.with_name("manifest.json")
    entries = json.loads(manifest.read_text())
    document = {**json.loads(path.read_text()), **values}
    entries[path.name] = shards.write_json(path, document)
    shards.write_json(manifest, entries)


def test_a_checkpoint_of_another_format_is_named(start, queued, tmp_path):
    start().step()
    rewrite(recover_directory(tmp_path) / "step_1" / "state.json", format=9)
    with pytest.raises(CheckpointError, match="of format 9, not 2"):
        start()


def test_training_starts_at_the_batch_of_a_model_published_in_this_run(
    start, queued, tmp_path
):
    life = start()
    life.step(save=False)
    published = model_dir.save_model(
        life.policy, tmp_path / "checkpoints" / "published" / "version_1", life.state
    )
    saved = life.state
    life.step(save=False)
    life = start(model_name=str(published))
    assert life.state == saved
    assert life.step() == ["key 1"]


def test_the_steps_of_training_on_a_file_are_none_of_a_run(api, config, tmp_path):
    model_dir.write_state(
        tmp_path, TrainerState(run_id="", step=16, version=16, batch_no=None)
    )
    assert recovery_of(config(model_name=str(tmp_path))).begins(api)


def stopped(life: Life, error: type[Stopped]) -> None:
    models = (life.client, life.policy, life.optimizer)
    with pytest.raises(Stopped), life.recovery.saving_at_stop(*models):
        life.step(save=False)
        assert not life.recovery.due(life.state, epoch_ended=False)
        raise error("SIGTERM")


def test_a_signal_between_two_steps_saves_the_last_one_so_that_none_is_repeated(start, queued):
    stopped(start(), StoppedBetweenSteps)
    assert start().state.step == 1


def test_a_signal_within_a_step_saves_nothing_as_the_models_are_in_between(start, queued):
    stopped(start(), Stopped)
    assert start().state.step == 0


def test_counters_of_saver_and_evaluator_are_restored(config, queued, start, small_model):
    def recovery_with(saver: Frequency) -> Recovery:
        cfg = config(training_steps=50, model_name=small_model)
        return recovery_of(cfg, counters={"saver": saver})

    life, counted = start(), Frequency(steps=3)
    life.recovery = recovery_with(counted)
    for _ in range(2):
        counted.due(False, 0.0)
    life.step()
    restored = Frequency(steps=3)
    recovery_with(restored).resume(life.client, life.policy, life.optimizer)
    assert restored.due(False, 0.0)


def test_baselines_of_roles_are_restored_to_the_bit(config, queued, start, small_model):
    cfg = config(training_steps=50, model_name=small_model)
    life, trained, restored = start(), RoleBaselines(), RoleBaselines()
    trained.take(["X", "O"], [0.1, -0.7], 0.9)
    trained.take(["X", "O"], [0.3, 0.2], 0.9)
    life.recovery = recovery_of(cfg, counters={"roles": trained})
    life.step()
    recovery = recovery_of(cfg, counters={"roles": restored})
    recovery.resume(life.client, life.policy, life.optimizer)
    assert restored.state() == trained.state() != {}


def test_a_critic_is_part_of_the_checkpoint(start, queued, config):
    life = start()
    cfg = config()
    critics = []
    for _ in range(2):
        value_like: Any = loading.load_policy(cfg)  # any model with weights and an optimizer
        critics.append(Critic(value_like, optimizer.build_optimizer(value_like, cfg), cfg))
    learn(critics[0].model, critics[0].optimizer, 0)  # type: ignore[arg-type]
    life.step(save=False)
    life.recovery.save(life.client, life.policy, life.optimizer, life.state, critics[0])
    life.recovery.finish()
    life.recovery.resume(life.client, life.policy, life.optimizer, critics[1])
    pairs = zip(critics[0].model.parameters(), critics[1].model.parameters())
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert optimizer.optimizer_state(critics[1].optimizer, critics[1].model)[0]


def test_servers_hold_the_initial_weights_only_before_the_first_trainer(api, start, config):
    assert recovery_of(config()).begins(api)
    assert api.status().state == "EMPTY"
    start()  # killed before its first checkpoint, perhaps after its first publish
    assert not recovery_of(config()).begins(api)


def test_previous_trainer_is_fenced(start, queued):
    former = start()
    former.step()
    start()
    with pytest.raises((NotRegistered, RunStateError)):
        former.step()
