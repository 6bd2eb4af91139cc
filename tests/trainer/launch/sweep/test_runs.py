"""Runs of a sweep: plans, files, states by their records, and problems of all in one error."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.io import write_whole
from example_trainer.launch.plan import read_plan, trainer_settings
from example_trainer.launch.sweep.runs import (
    changed_settings,
    read_runs,
    record_of,
    require_apart,
    require_startable_runs,
    write_files,
)
from tests.trainer.launch.launch_plans import GSM8K
from tests.trainer.launch.sweep.sweeps import SWEEP, sweep


def test_each_run_has_the_settings_of_its_combination_and_a_folder(tmp_path):
    base, runs = sweep(tmp_path, SWEEP)
    assert [run.name for run in runs][:2] == ["lr=1e-05,seed=0", "lr=1e-05,seed=1"]
    last = runs[-1]
    assert (last.cfg.lr, last.cfg.seed, last.cfg.training_steps) == (2e-5, 2, 4)
    assert last.plan.directory == tmp_path / "lr=2e-05,seed=2"
    assert last.plan.name == "gsm8k-lr-2e-05-seed-2" and last.plan.sweep is None


def test_the_file_of_a_run_is_complete(tmp_path):
    base, runs = sweep(tmp_path, "sweep={environments.0.env.group_size: [4, 8]}")
    write_files(base, runs)
    for run, size in zip(runs, (4, 8)):
        alone = read_plan([str(run.file)])
        assert alone.environments[0].config["env"]["group_size"] == size
        assert alone.model_dump() == run.plan.model_dump()
        assert trainer_settings(alone)[1] == run.cfg
    known = json.loads((tmp_path / "sweep.yaml").read_text())
    assert known["runs"] == {
        f"group_size={size}": {"environments.0.env.group_size": size} for size in (4, 8)
    }


def test_every_problem_of_the_settings_is_in_one_error(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("sweep:\n  lr: [1e-5, high]\n  lerning_rate: [1]\n")
    base = read_plan([GSM8K, str(path)])
    with pytest.raises(ConfigError) as refused:
        read_runs(base, lambda settings: read_plan([GSM8K, str(path)], settings))
    assert "run.yaml:3: sweep.lerning_rate is no setting" in str(refused.value)
    path.write_text("sweep:\n  lr: [1e-5, high]\n  seed: [0, 1]\n")
    base = read_plan([GSM8K, str(path)])
    with pytest.raises(ConfigError) as refused:
        read_runs(base, lambda settings: read_plan([GSM8K, str(path)], settings))
    text = str(refused.value)
    assert text.startswith("lr=high,seed=0 and 1 more: ")
    assert "run.yaml:2: sweep.lr should be a" in text and "'high'" in text


def test_runs_that_cannot_start_are_named_with_their_problems(tmp_path):
    model = write_tiny_model(tmp_path / "model")
    engine = ("inference.engine=local", f"model_name={model}")
    with pytest.raises(ConfigError, match="^loss=mine: .*loss 'mine' is unknown"):
        sweep(tmp_path / "out", *engine, "sweep={loss: [grpo, cispo, mine]}")
    _, runs = sweep(tmp_path / "out", *engine, "sweep={loss: [grpo, 'absent.py:loss']}")
    with pytest.raises(ConfigError, match="^loss=absent.py.*: absent.py: no such file"):
        require_startable_runs(runs, [()])
    _, sound = sweep(tmp_path / "out", *engine, SWEEP)
    require_startable_runs(sound, [()])
    with pytest.raises(ConfigError, match="need 3 GPUs|are visible"):
        require_startable_runs(sweep(tmp_path, *engine, SWEEP, "trainer.nproc=3")[1], [("0",)])
    _, fixed = sweep(tmp_path / "out", *engine, SWEEP, "api.port=0", "inference.port=29123")
    with pytest.raises(ConfigError, match="^api.port and inference.port: runs side by side"):
        require_startable_runs(fixed, [(), ()])


@pytest.mark.parametrize(
    "word, problem",
    [
        ("save_path=/a", "trainer.settings.save_path: /a is of several runs"),
        ("log_dir=/a", "trainer.settings.log_dir: /a is of several runs"),
        ("store=/a", "api.data, store: /a is of several runs"),
        ("api.data=/a", "api.data, store: /a is of several runs"),
        ("store=postgresql://db/a", "api.data, store: postgresql://db/a is of several runs"),
        ("store=postgresql://a:geheim@db/a", "name the password as ${VARIABLE}"),
    ],
)
def test_runs_keep_apart_and_no_password_is_written(tmp_path, word, problem):
    with pytest.raises(ConfigError) as refused:
        require_apart(sweep(tmp_path, SWEEP, word)[1])
    text = str(refused.value)
    assert problem in text
    if "geheim" in word:
        assert text.startswith("store: a sweep writes it to files")
    require_apart(sweep(tmp_path, SWEEP, "store=memory")[1])


@pytest.mark.parametrize(
    "step, outcome, state",
    [
        (None, None, "new"),
        (None, ("running", 4, ""), "stopped"),
        (None, ("stopped", 4, ""), "stopped"),
        (None, ("failed", 4, "no memory"), "failed"),
        (4, ("done", 4, ""), "done"),
        (4, None, "done"),
        (4, ("running", 4, ""), "done"),
        (2, ("stopped", 4, "every environment has ended"), "done"),
        (2, ("stopped", 2, ""), "stopped"),
    ],
)
def test_the_state_of_a_run_is_in_the_records_of_its_folder(tmp_path, step, outcome, state):
    run = sweep(tmp_path, SWEEP)[1][0]
    if step is not None:
        write_whole(run.plan.end_record, json.dumps({"step": step}))
    if outcome is not None:
        facts = dict(zip(("state", "steps", "problem"), outcome))
        write_whole(run.plan.launched / "outcome.json", json.dumps(facts))
    record = record_of(run)
    assert record.state == state
    if outcome and outcome[2]:
        assert outcome[2] in record.problem


def test_a_done_run_keeps_the_settings_that_it_was_trained_with(tmp_path):
    base, runs = sweep(tmp_path, SWEEP)
    write_files(base, runs)
    assert changed_settings(runs[0]) == []
    write_whole(runs[0].plan.end_record, json.dumps({"step": 4}))
    base, runs = sweep(tmp_path, SWEEP, "batch_size=4")
    write_files(base, runs)
    [changed] = changed_settings(runs[0])
    assert changed.startswith("trainer.settings.batch_size ") and changed.endswith(", now 4")
    assert changed_settings(runs[1]) == []
