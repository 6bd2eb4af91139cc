"""Teachers that the launcher starts, in runs of real processes: two at once, killed, frozen."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atroposlib.run_status.why import report_on
from atroposlib.testing.tiny import write_tiny_model
from tests.torture.kills.env_world import QUIET, REPO, WITHIN_S, until

pytestmark = pytest.mark.slow
STEPS = 6
OUTAGE_S = 12.0  # before the launcher starts the teacher again; waits have a name after 5 s


class TaughtRun:
    """``atropos run local`` of copy tasks; the only signal of each is its teacher.

    Args:
        taught: name of each environment: its teacher's settings, and its algorithm.
        more: further keys of the plan.
    """

    def __init__(
        self,
        folder: Path,
        taught: dict[str, tuple[dict[str, Any], dict[str, Any]]],
        **more: Any,
    ) -> None:
        self.out = folder / "run"
        student, *models = (
            str(
                write_tiny_model(
                    folder / f"model-{seed}", seed=seed, hidden_size=32, num_layers=1
                )
            )
            for seed in range(1 + len(taught))
        )
        env = {
            "group_size": 4,
            "max_token_length": 32,
            "use_wandb": False,
            "max_num_workers": 2,
        }
        env |= {"total_steps": STEPS}
        settings = {
            "model_name": student,
            "device": "cpu",
            "loss": "reverse_kl",
            "seq_len": 32,
        }
        settings |= {
            "batch_size": 4,
            "gradient_accumulation_steps": 2,
            "training_steps": STEPS,
        }
        settings |= {"optim.optimizer": "adamw", "checkpoint_interval": 0}
        if len(taught) > 1:
            settings["algorithms"] = {
                name: algorithm for name, (_, algorithm) in taught.items()
            }
            env |= {"min_batch_allocation": 1 / len(taught)}
        plan = {
            "out": str(self.out),
            "inference": {"engine": "local", "env": QUIET},
            "teachers": {
                f"of-{name}": {"model": model, "engine": "local", "env": QUIET}
                for name, model in zip(taught, models)
            },
            "environments": [
                {
                    "script": str(REPO / "environments" / "copy_server.py"),
                    "name": name,
                    "config": {
                        "env": {**env, "teacher": {"base_url": f"of-{name}", **teacher}}
                    },
                    "env": QUIET,
                }
                for name, (teacher, _) in taught.items()
            ],
            "trainer": {"settings": settings, "env": QUIET},
            **more,
        }
        (folder / "run.yaml").write_text(json.dumps(plan))
        words = ("-m", "example_trainer.launch", "local", "--config", "run.yaml", "--no-live")
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def rows(self) -> list[dict]:
        path = self.out / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [row for row in map(json.loads, lines) if "step" in row]

    def teacher_url(self) -> str:
        settings = json.loads((self.out / "launch" / "environment-0.yaml").read_text())
        url: str = settings["env"]["teacher"]["base_url"]
        return url

    def signal_teacher(self, number: signal.Signals) -> None:
        port = self.teacher_url().removesuffix("/v1").rpartition(":")[2]
        pattern = re.escape(f"--host 127.0.0.1 --port {port}")
        done = subprocess.run(["pgrep", "-f", "--", pattern], capture_output=True, text=True)
        (pid,) = map(int, done.stdout.split())
        os.kill(pid, number)

    def report(self):  # type: ignore[no-untyped-def]
        return report_on(self.out, "", True)

    def findings(self) -> list[str]:
        return [finding["key"] for finding in self.report().verdict["findings"]]

    def finish(self) -> tuple[int, str]:
        printed, _ = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, printed

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=WITHIN_S)


@pytest.fixture
def start(tmp_path) -> Iterator:
    runs: list[TaughtRun] = []

    def make(taught, **more):
        runs.append(TaughtRun(tmp_path, taught, **more))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def test_a_run_goes_on_after_its_teacher_was_killed_and_nothing_is_sent_without_it(start):
    """The environment waits for the teacher by name, which `atropos why` shows first."""
    run = start({"copy": ({}, {})}, restart_delay_s=OUTAGE_S)
    until("the second step", lambda: len(run.rows()) >= 2)
    run.signal_teacher(signal.SIGKILL)
    until("the finding of the teacher", lambda: run.findings()[:1] == ["teacher-silent"])
    (finding,) = run.report().verdict["findings"][:1]
    address = run.teacher_url()
    assert (
        f"copy_0 waits for the teacher {address}: logprobs of 4 seq" in finding["evidence"][0]
    )
    status, printed = run.finish()
    assert status == 0, printed
    assert "teacher-of-copy died (signal SIGKILL); starting it again (1 of 3)" in printed
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert {row["distill_share"] for row in rows} == {1.0}
    keys = [key for row in rows for key in row["keys"]]
    assert len(keys) == len(set(keys)) == 2 * STEPS


def test_a_teacher_that_never_answers_again_ends_the_run_within_its_bound_by_name(start):
    """A frozen process does not end and so is not started again: its environment gives up."""
    run = start({"copy": ({"timeout_s": 6.0}, {})}, restarts=1, restart_delay_s=0.1)
    until("the second step", lambda: len(run.rows()) >= 2)
    run.signal_teacher(signal.SIGSTOP)
    status, printed = run.finish()
    assert status == 1
    assert "env-0-copy died (exit code 1); it was started 2 times (restarts)" in printed
    assert re.search(r"TeacherUnavailable|did not come within 6 s: start its server", printed)
    assert {row["distill_share"] for row in run.rows()} == {1.0}


def test_each_environment_of_a_run_has_its_own_teacher_and_loss(start):
    taught = {
        "near": ({"top_k": 4}, {"loss": "jsd", "distill_rest": "bucket"}),
        "far": ({}, {"loss": "reverse_kl"}),
    }
    run = start(taught)
    status, printed = run.finish()
    assert status == 0, printed
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert row["distill_share/near"] == row["distill_share/far"] == 1.0
        assert row["distill_jsd/near"] > 0 and "distill_jsd/far" not in row
        assert "distill_kl/far" in row and "distill_kl/near" not in row
