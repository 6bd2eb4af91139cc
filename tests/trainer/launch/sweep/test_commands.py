"""A sweep by the commands check, slurm and k8s."""

from __future__ import annotations

import json

import pytest
import yaml

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.io import write_whole
from example_trainer.launch.__main__ import _run as start, parse
from example_trainer.launch.sweep.queue import QueueOptions, check_runs
from tests.trainer.launch.launch_plans import GSM8K
from tests.trainer.launch.sweep.sweeps import SWEEP, sweep

GOLDEN = """\
# lr=1e-05,seed=0: OUT/lr=1e-05,seed=0
sbatch --parsable OUT/lr=1e-05,seed=0/launch/api.sbatch
sbatch --parsable '--dependency=after:<api>' OUT/lr=1e-05,seed=0/launch/env-0-gsm8k_server.sbatch
sbatch --parsable '--dependency=after:<api>:<env-0-gsm8k_server>' \
OUT/lr=1e-05,seed=0/launch/inference.sbatch
sbatch --parsable '--dependency=after:<api>:<env-0-gsm8k_server>:<inference>' \
OUT/lr=1e-05,seed=0/launch/trainer.sbatch
# lr=1e-05,seed=1: OUT/lr=1e-05,seed=1
sbatch --parsable OUT/lr=1e-05,seed=1/launch/api.sbatch
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Start a command for a sweep in tmp_path; its status."""
    monkeypatch.chdir(tmp_path)

    def command(what, *words):
        given = [what, GSM8K, *words, f"out={tmp_path}", "training_steps=4", SWEEP]
        return start(parse([*given, "inference.engine=local"]))

    return command


def test_slurm_gets_the_jobs_of_every_run(run, tmp_path, capsys):
    assert run("slurm", "--dry-run") == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "OUT")
    assert printed.startswith(GOLDEN) and printed.count("# lr=") == 6
    plan = json.loads((tmp_path / "lr=2e-05,seed=2/launch/plan.json").read_text())
    assert plan["trainer"]["settings"]["seed"] == 2 and plan["sweep"] is None
    script = (tmp_path / "lr=2e-05,seed=2/launch/trainer.sbatch").read_text()
    assert "#SBATCH --job-name=gsm8k-lr-2e-05-seed-2-trainer\n" in script


def test_slurm_leaves_a_run_alone_that_is_done(run, tmp_path, capsys):
    done = sweep(tmp_path, SWEEP)[1][0]
    write_whole(done.plan.end_record, json.dumps({"step": 4}))
    assert run("slurm", "--dry-run") == 0
    assert "# lr=1e-05,seed=0: done\n# lr=1e-05,seed=1: " in capsys.readouterr().out
    assert done.plan.end_record.exists()


def test_with_jobs_a_run_waits_for_the_trainer_of_an_earlier_run(run, tmp_path, capsys):
    assert run("slurm", "--dry-run", "--jobs", "2") == 0
    apis = [line for line in capsys.readouterr().out.splitlines() if "api.sbatch" in line]
    waits = [line.partition("dependency=")[2].partition("'")[0] for line in apis]
    names = [f"lr={lr},seed={seed}" for lr in ("1e-05", "2e-05") for seed in range(3)]
    assert waits == ["", "", *(f"afterany:<{name} trainer>" for name in names[:4])]


SBATCH = """#!/bin/sh
echo "$@" >> calls
wc -l < calls
"""


def test_jobs_that_slurm_still_has_are_not_submitted_twice(run, tmp_path, monkeypatch, capsys):
    for name, text in (("sbatch", SBATCH), ("squeue", "#!/bin/sh\necho 4; echo 3\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert run("slurm", "--jobs", "1") == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 24
    assert f"--dependency=afterany:4 {tmp_path}/lr=1e-05,seed=1/launch/api.sbatch" in calls[4]
    capsys.readouterr()
    assert run("slurm") == 0
    assert len((tmp_path / "calls").read_text().splitlines()) == 24
    assert "# lr=1e-05,seed=0: SLURM has its jobs 3 4" in capsys.readouterr().out


def test_kubernetes_gets_a_manifest_for_each_run(run, tmp_path, capsys):
    assert run("k8s", "k8s.image=a", "k8s.volume_claim=b", "name=g") == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line == "lr=1e-05,seed=0: kubectl apply -f g-lr-1e-05-seed-0-k8s.yaml"
    secret, jobset = yaml.safe_load_all((tmp_path / "g-lr-1e-05-seed-0-k8s.yaml").read_text())
    assert jobset["metadata"]["name"] == "g-lr-1e-05-seed-0"
    assert json.loads(secret["stringData"]["plan.json"])["trainer"]["settings"]["seed"] == 0
    with pytest.raises(ConfigError, match="--manifest names one file"):
        run("k8s", "--manifest", "a.yaml")


def test_a_check_names_every_run_and_starts_none(run, tmp_path, capsys, monkeypatch):
    model = write_tiny_model(tmp_path / "model")
    checked = []
    monkeypatch.setattr(
        "example_trainer.launch.sweep.queue.check_environments",
        lambda plan: checked.append(plan.name) or ["environment: its settings are sound"],
    )
    assert run("check", f"model_name={model}") == 0
    printed = capsys.readouterr().out
    assert "lr=2e-05,seed=2: lr=2e-05 seed=2\n" in printed
    assert printed.endswith(f"gsm8k: the sweep is sound, 6 runs, in {tmp_path}\n")
    assert checked == ["gsm8k-lr-1e-05-seed-0"]  # six runs, one environment
    assert not (tmp_path / "sweep.yaml").exists()


def test_every_environment_with_other_settings_is_checked(tmp_path, monkeypatch):
    model = write_tiny_model(tmp_path / "model")
    sizes = "sweep={environments.0.env.group_size: [4, x, y], seed: [0, 1]}"
    words = (f"model_name={model}", "inference.engine=local", sizes)
    _, runs = sweep(tmp_path / "out", *words)

    def check(plan):
        size = plan.environments[0].config["env"]["group_size"]
        if size != 4:
            raise ConfigError(f"{size} is no size")
        yield "sound"

    monkeypatch.setattr("example_trainer.launch.sweep.queue.check_environments", check)
    lines = check_runs(runs, [()], QueueOptions())
    assert next(lines) == "sound"
    problem = "group_size=x,seed=0: x is no size; group_size=y,seed=0: y is no size"
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        next(lines)


def test_a_word_of_the_command_line_for_a_swept_setting_is_refused(run):
    with pytest.raises(ConfigError, match="command line: lr is a setting of the sweep"):
        run("slurm", "--dry-run", "lr=1e-3")


def test_a_number_of_runs_is_from_1_on(capsys):
    with pytest.raises(SystemExit):
        parse(["local", GSM8K, "--jobs", "0"])
    assert "a whole number from 1, not '0'" in capsys.readouterr().err
