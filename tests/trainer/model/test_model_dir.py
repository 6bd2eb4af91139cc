from __future__ import annotations

import pytest
import torch

from atroposlib.errors import CheckpointError, ConfigError
from example_trainer.model import loading
from example_trainer.model.model_dir import (
    STATE_FILE,
    TrainerState,
    is_tied,
    read_state,
    save_model,
    tidy,
    untied_copy,
    whole_directory,
)

STATE = TrainerState("run", step=4, version=4, batch_no=3)


def test_a_checkpoint_loads_back_bit_for_bit(policy, config, tmp_path):
    directory = save_model(policy, tmp_path / "step_4", STATE)
    again = loading.load_policy(config(model_name=str(directory)))
    for ours, theirs in zip(policy.parameters(), again.parameters()):
        assert torch.equal(ours, theirs)
    assert again.tokenizer("abc")["input_ids"] == policy.tokenizer("abc")["input_ids"]
    assert read_state(str(directory)) == STATE


def test_an_untied_copy_scores_the_same(policy, model_dir, config, tmp_path):
    directory = untied_copy(str(model_dir), tmp_path / "untied")
    untied = loading.load_policy(config(model_name=str(directory)))
    assert is_tied(policy) and not is_tied(untied)
    assert untied.logprobs_of([[5, 6, 7]]) == policy.logprobs_of([[5, 6, 7]])


def test_weights_are_written_in_the_compute_dtype(policy, tmp_path):
    from safetensors.torch import load_file

    policy.module.compute_dtype = torch.bfloat16
    directory = save_model(policy, tmp_path / "step_1", STATE)
    weights = load_file(directory / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert '"dtype": "bfloat16"' in (directory / "config.json").read_text()
    assert policy.parameters()[0].dtype is torch.float32


def test_every_file_of_a_model_may_be_read_by_whom_the_umask_allows(policy, tmp_path):
    directory = save_model(policy, tmp_path / "step_1", STATE)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in directory.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_failed_write_keeps_the_old_directory(tmp_path):
    final = tmp_path / "model"
    with whole_directory(final, durable=True) as draft:
        (draft / "weights").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        with whole_directory(final, durable=True) as draft:
            (draft / "weights").write_text("half")
            raise KeyboardInterrupt
    assert (final / "weights").read_text() == "old"
    with whole_directory(final, durable=False) as draft:
        assert list(draft.iterdir()) == []
        (draft / "weights").write_text("new")
    assert (final / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_batches_of_the_same_run_count_as_trained():
    assert STATE.has_trained("run", 3) and STATE.has_trained("run", 1)
    assert not STATE.has_trained("run", 4) and not STATE.has_trained("other", 3)


def test_a_state_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / STATE_FILE).write_text("{")
    with pytest.raises(ConfigError, match=STATE_FILE):
        read_state(str(tmp_path))
    assert read_state(str(tmp_path / "absent")) is None


def test_a_writer_that_died_between_its_two_renames_left_the_old_directory(tmp_path):
    final = tmp_path / "model"
    replaced, draft = tmp_path / ".model.replaced", tmp_path / ".model.draft"
    for directory, text in ((replaced, "old"), (draft, "new")):
        directory.mkdir()
        (directory / "weights").write_text(text)
    tidy(tmp_path)
    assert (final / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_is_named_and_the_old_directory_stays(policy, tmp_path, monkeypatch):
    directory = save_model(policy, tmp_path / "step_4", STATE)
    before = (directory / "model.safetensors").read_bytes()

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("example_trainer.model.model_dir.sync_path", full)
    with pytest.raises(CheckpointError, match="step_4 could not be written.*No space left"):
        save_model(policy, tmp_path / "step_4", STATE)
    assert (directory / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]
