"""Tests of a local run: commands of the processes and reactions to their ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from atroposlib.errors import ConfigError
from atroposlib.processes import Children, ProcessSpec, RunFailed, StopRequest
from atroposlib.run_status.sources import RunSnapshot
from atroposlib.run_status.view import PlainView
from atroposlib.utils.command.folder_lock import FolderLock
from example_trainer.launch.__main__ import _run as start, parse
from example_trainer.launch.gpus import GpuShares
from example_trainer.launch.local import (
    LocalRun,
    RestartPolicy,
    newest_weights,
    processes,
    run_local,
)
from example_trainer.launch.plan import trainer_settings
from example_trainer.state import end
from tests.trainer.launch.launch_plans import plan

REPO = Path(__file__).resolve().parents[3]


def test_every_process_of_this_machine_has_its_command(tmp_path):
    found = plan(
        "inference.count=2", "inference.engine=local", "inference.port=9100", out=tmp_path
    )
    specs = {spec.name: spec for spec in processes(found, GpuShares(("0", "1"), "2"))}
    assert list(specs) == [
        "api",
        "inference-0",
        "inference-1",
        "env-0-gsm8k_server",
        "trainer",
    ]
    assert specs["inference-1"].health_url == "http://127.0.0.1:9101/health"
    names = ("inference-0", "inference-1", "trainer")
    assert [specs[name].env["CUDA_VISIBLE_DEVICES"] for name in names] == ["0", "1", "2"]
    assert "CUDA_VISIBLE_DEVICES" not in specs["api"].env
    restartable = [name for name, spec in specs.items() if spec.restartable]
    assert restartable == ["api", "inference-0", "inference-1", "env-0-gsm8k_server"]


# argv: a file that counts the starts, then the exit code of each of them; the last sleeps on.
# AFTER: files of others that have started before this one ends. RECORD: written at an exit code 0
# of the start RECORD_AT, or once NO_MORE is there.
STAND_IN = """
import os, pathlib, sys, time
file = pathlib.Path(sys.argv[1])
with file.open("a") as out:
    out.write(os.environ.get("ATROPOS_RUN_ID", "-") + "\\n")
starts = len(file.read_text().splitlines())
for other in map(pathlib.Path, os.environ.get("AFTER", "").split()):
    while not other.exists() or not other.stat().st_size:
        time.sleep(0.01)
if starts == int(os.environ.get("RECORD_AT", 0)):
    pathlib.Path(os.environ["RECORD"]).write_text('{"step": 3}')
if starts <= len(sys.argv) - 2:
    sys.exit(int(sys.argv[1 + starts]))
time.sleep(600)
"""


class NoSources:
    """Sources of a run without an API; the last answer ends the run."""

    def __init__(self, *has_no_environment: bool) -> None:
        self._answers = list(has_no_environment)

    read = staticmethod(RunSnapshot)

    def has_no_environment(self) -> bool:
        if not self._answers:
            raise RunFailed("asked too often")
        return self._answers.pop(0)


@pytest.fixture
def watch(tmp_path):
    """Run stand-ins to the end of the run; return the output and the starts of each."""

    def run(policy: RestartPolicy, record_at=1, gone=(), **codes: list[int]):
        console = Console(file=io.StringIO(), width=200)
        envs = " ".join(str(tmp_path / name) for name in codes if name.startswith("env"))
        of_run = plan(out=tmp_path)
        of_run.launched.mkdir()
        told = of_run.end_record.with_name(end.NO_MORE_GROUPS)
        record = {"RECORD": str(of_run.end_record), "RECORD_AT": str(record_at)}
        given = {"trainer": {"ATROPOS_RUN_ID": "0", **record}, "inference": {"AFTER": envs}}
        given["trainer"] |= {"AFTER": f"{told}"} if gone else {}
        specs = [
            ProcessSpec(
                name,
                (sys.executable, "-S", "-c", STAND_IN, str(tmp_path / name), *map(str, exits)),
                given.get(name, {}),
                tmp_path,
                restartable=name != "trainer",
            )
            for name, exits in codes.items()
        ]
        with Children(tmp_path / "logs") as children:
            try:
                view = PlainView(console)
                local = LocalRun(
                    of_run, specs, children, StopRequest(), policy, view, NoSources(*gone)
                )
                local.start()
                local.watch(local.is_trained)
            except RunFailed as failure:
                view.print_line(f"failed: {failure.line}")
        starts = {
            name: (tmp_path / name).read_text().split() if (tmp_path / name).exists() else []
            for name in codes
        }
        return console.file.getvalue().splitlines(), starts

    return run


def test_a_trainer_that_ends_well_ends_the_run(watch):
    printed, starts = watch(RestartPolicy(3, 3, 0.0), env=[], trainer=[0])
    assert (printed, starts["trainer"]) == ([], ["0"])


def test_an_exit_status_of_0_without_the_record_of_the_end_is_a_failure(watch):
    printed, starts = watch(RestartPolicy(2, 3, 0.0), 3, trainer=[0, 0, 0])
    assert starts["trainer"] == ["0", "1", "2"]
    line = "trainer failed (exit code 0) without its record of the end; starting it again"
    assert printed[:2] == [f"{line} (1 of 2)", f"{line} (2 of 2)"]


def test_a_second_run_in_the_folder_of_another_changes_nothing_and_names_it(tmp_path):
    found = plan("inference.engine=local", out=tmp_path)
    end.record_end(found.end_record, step=3)

    def files():  # without the times of access, which the listing itself changes
        stats = {path: path.stat() for path in tmp_path.rglob("*")}
        return {
            path: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()
        }

    with FolderLock(tmp_path, "wait"):
        before = files()
        with pytest.raises(
            ConfigError, match=rf"in use by process {os.getpid()} on .*: wait for"
        ):
            run_local(found, live=False)
        assert files() == before


def test_a_trainer_that_fails_is_started_again_under_the_next_run_id(watch):
    printed, starts = watch(RestartPolicy(2, 3, 0.0), 3, trainer=[1, 1, 0])
    assert starts["trainer"] == ["0", "1", "2"]
    assert printed[0] == "trainer failed (exit code 1); starting it again (1 of 2)"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_trainer_that_keeps_failing_fails_the_run(watch, retries):
    printed, starts = watch(RestartPolicy(retries, 3, 0.0), env=[], trainer=[1] * 5)
    assert len(starts["trainer"]) == retries + 1
    assert printed[-1].startswith(
        f"failed: trainer failed (exit code 1); it was started {retries + 1}"
    )
    assert printed[-1].endswith("logs/trainer.log")


def test_crashed_environment_is_restarted_and_finished_environment_is_not(watch):
    printed, starts = watch(
        RestartPolicy(0, 1, 0.0), env_a=[3], env_b=[0], inference=[3, 3], trainer=[]
    )
    assert len(starts["env_b"]) == 1 and len(starts["env_a"]) <= 2
    assert printed[-1].startswith(
        "failed: inference died (exit code 3); it was started 2 times"
    )


def test_the_trainer_hears_when_the_last_environment_has_ended_and_ends(watch):
    printed, starts = watch(
        RestartPolicy(0, 1, 0.0), gone=(False, True), env_a=[3, 0], env_b=[0], trainer=[0]
    )
    assert len(starts["env_a"]) == 2 and starts["trainer"] == ["0"]
    said = "every environment has ended: the trainer takes what is left, and saves"
    assert printed[-1] == said and printed.count("env_a is done") == 1


def test_the_trainer_waits_while_an_environment_that_another_started_lives(watch):
    printed, _ = watch(RestartPolicy(0, 0, 0.0), gone=(False,) * 3, env=[0], trainer=[])
    assert printed == ["env is done", "failed: asked too often"]


def test_a_dead_inference_server_is_started_again_alone(watch):
    printed, starts = watch(RestartPolicy(0, 1, 0.0), inference=[3, 3], trainer=[])
    assert len(starts["inference"]) == 2 and len(starts["trainer"]) == 1
    assert printed[0] == "inference died (exit code 3); starting it again (1 of 1)"


@pytest.mark.parametrize("name", ["env", "trainer"])
def test_invalid_settings_end_the_run_without_another_start(watch, name):
    with pytest.raises(ConfigError, match=f"log: .*{name}.log"):
        watch(RestartPolicy(3, 3, 0.0), **{"env": [], "trainer": [], name: [2]})


def test_invalid_settings_of_an_environment_end_the_start_of_the_servers(tmp_path):
    file = f"{tmp_path}/launch/environment-1.yaml"
    fails = f"import sys; sys.exit(print('error: --config {file}: no key x') or 2)"
    found = []
    for name, code in (("inference", "import time; time.sleep(600)"), ("env", fails)):
        url = "http://127.0.0.1:9/health" if name == "inference" else None
        argv = (sys.executable, "-S", "-c", code, "serve")
        found.append(ProcessSpec(name, argv, {}, tmp_path, url, restartable=name == "env"))
    view, policy = PlainView(Console(file=io.StringIO())), RestartPolicy(0, 3, 0.0)
    of_run, stop = plan(out=tmp_path), StopRequest()
    named = "^environments.1.config: no key x .log: .*env.log"
    with Children(tmp_path / "logs") as children:
        run = LocalRun(of_run, found, children, stop, policy, view, NoSources())
        with pytest.raises(ConfigError, match=named):
            run.start({"env"})


def test_a_wrong_script_is_reported_with_the_file_of_the_run(tmp_path):
    run = {"environments": [{"script": "absent.py"}], "out": str(tmp_path)}
    run |= {"trainer": {"settings": {"model_name": "tiny"}}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    options = parse(["local", "--config", str(tmp_path / "run.yaml")])
    with pytest.raises(ConfigError, match="/run.yaml: .*environments: no file absent.py here"):
        start(options)


def test_the_newest_weights_are_those_written_last(tmp_path):
    for name, seconds in (("published/version_3", 20), ("published/version_9", 10)):
        config = tmp_path / name / "config.json"
        config.parent.mkdir(parents=True)
        config.touch()
        os.utime(config, (seconds, seconds))
    assert newest_weights(tmp_path, tmp_path / "published") == tmp_path / "published/version_3"
    assert newest_weights(tmp_path / "empty") is None


@pytest.mark.parametrize(("mode", "retries"), [("auto", 2), ("fault", 2), ("disabled", 0)])
def test_only_modes_that_recover_start_a_trainer_again(mode, retries, tmp_path):
    found = plan(f"recover_mode={mode}", "recover_retries=2", out=tmp_path)
    _, cfg = trainer_settings(found)
    assert cfg.trainer_retries == retries


@pytest.mark.slow
def test_one_yaml_file_starts_a_complete_run(tmp_path, model_dir):
    one_core = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {"group_size": 4, "max_token_length": 64, "use_wandb": False}
    settings = {"model_name": str(model_dir), "device": "cpu", "optim.optimizer": "adamw"}
    settings |= {"seq_len": 64, "batch_size": 4, "gradient_accumulation_steps": 2}
    settings |= {"training_steps": 2, "actor.optimizer.lr": 1e-3, "checkpoint_interval": 0}
    described = {
        "out": str(tmp_path / "run"),
        "inference": {"engine": "local", "env": one_core},
        "environments": [
            {
                "script": str(REPO / "environments" / "copy_server.py"),
                "config": {"env": {**environment, "total_steps": 2}},
                "env": one_core,
            }
        ],
        "trainer": {"settings": settings, "env": one_core},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(described))
    command = [sys.executable, "-m", "example_trainer.launch", "local", "--config", "run.yaml"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "run"
    result, paths, page = done.stdout.splitlines()
    assert re.fullmatch(
        rf"atropos: done, 2 steps in \d+:\d\d, in {re.escape(str(out))}", result
    )
    named = f"metrics {out}/metrics.jsonl, logs {out}/logs"
    assert paths == f"model {out}/checkpoints/final_model, {named}"
    assert page == f"page: atropos view {out}"
    assert re.search(r"page http://127.0.0.1:\d+/ui/", done.stderr.splitlines()[0])
    assert json.loads((out / "launch/outcome.json").read_text())["state"] == "done"
    shown = [
        line for line in done.stderr.splitlines() if " info    atropos-launch  step " in line
    ]
    assert "step 2/2" in shown[-1]  # quick steps may share a line: the newest is shown
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert (tmp_path / "run" / "checkpoints" / "final_model" / "config.json").exists()


def test_the_server_of_evaluations_is_of_the_run_but_not_in_the_directory(tmp_path):
    words = ("evaluation.where=dir", "evaluation.environments=gsm8k_server")
    found = plan(*words, "inference.engine=local", "inference.port=9100", out=tmp_path)
    specs = {spec.name: spec for spec in processes(found, GpuShares((None, None)))}
    assert list(specs)[1:3] == ["inference-0", "evaluation-server"]
    server = specs["evaluation-server"]
    assert server.health_url == "http://127.0.0.1:9101/health"
    assert "atroposlib.client.announce" in specs["inference-0"].argv
    assert "atroposlib.client.announce" not in server.argv
    settings = json.loads((tmp_path / "launch" / "trainer.yaml").read_text())
    assert settings["eval_url"] == "http://127.0.0.1:9101"


def test_a_server_of_evaluations_that_keeps_dying_costs_the_evaluations_alone(watch):
    codes = {"evaluation-server": [1, 1, 1], "trainer": [0]}
    printed, starts = watch(RestartPolicy(3, 2, 0.0), env=[], **codes)
    assert starts["trainer"] == ["0"] and not [line for line in printed if "failed:" in line]
