"""The whole system as its users start it: real processes, a real model, real HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import httpx
import pytest

REPO = Path(__file__).resolve().parents[2]
LAST_LINE = re.compile(
    r"quickstart: exact (\d\.\d\d) -> (\d\.\d\d) in \d+ s, (\d+) steps, "
    r"weights version (\d+), \d+ cores"
)
WITHIN_S = 600.0
SENDS_AT_ONCE = 32  # rollouts at once of the tiny recipe, and so sends at most


class Quickstart:
    """One ``python -m atroposlib.quickstart --model tiny`` with its controls."""

    def __init__(self, out: Path, *options: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "atroposlib.quickstart", "--model", "tiny"]
        self.process = subprocess.Popen(
            [*command, "--no-live", "--out", str(out), *options],
            cwd=REPO,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.restarted: list[subprocess.Popen[bytes]] = []

    def finish(self) -> tuple[int, list[str]]:
        printed, _ = self.process.communicate(timeout=WITHIN_S)
        print(printed)
        return self.process.returncode, printed.splitlines()

    def rows(self) -> list[dict]:
        """The trainer's steps so far."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def command_of(self, name: str) -> str:
        """The command of this process in ``commands.txt``."""
        lines = (self.out / "commands.txt").read_text().splitlines()
        return lines[lines.index(f"# {name}") + 1]

    def kill(self, name: str) -> None:
        """kill -9, as the kernel does when memory runs out."""
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: signal.Signals) -> None:
        arguments = self.command_of(name).split(" -m ")[-1].split(".py ")[-1]
        found = subprocess.run(
            ["pgrep", "-f", "--", re.escape(arguments)], capture_output=True, text=True
        )
        pids = [int(pid) for pid in found.stdout.split()]
        assert pids, f"no process runs {arguments}"
        for pid in pids:
            os.kill(pid, number)

    def stalled(self) -> list[str]:
        """The processes that GET /status names."""
        return self.status()["stalled"]

    def why(self) -> list[str]:
        """The findings of ``atropos why``, strongest first."""
        command = [
            sys.executable,
            "-m",
            "atroposlib.cli.atropos",
            "why",
            str(self.out),
            "--json",
        ]
        done = subprocess.run(
            command, cwd=REPO, capture_output=True, text=True, timeout=WITHIN_S
        )
        return [one["key"] for one in json.loads(done.stdout)["findings"]]

    def waits(self) -> str:
        """What the trainer waits for."""
        beats = {one["role"]: one for one in self.status()["participants"]}
        return beats["trainer"]["waiting_on"] or ""

    def status(self) -> dict:
        found = re.search(r"--port (\d+)", self.command_of("api"))
        assert found
        status: dict = httpx.get(
            f"http://127.0.0.1:{found[1]}/status", timeout=WITHIN_S
        ).json()
        return status

    def restart_by_hand(self, name: str) -> None:
        self.restarted.append(
            subprocess.Popen(["sh", "-c", self.command_of(name)], start_new_session=True)
        )

    def close(self) -> None:
        for process in [self.process, *self.restarted]:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            process.wait(timeout=WITHIN_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Quickstart]]:
    started: list[Quickstart] = []

    def make(*options: str) -> Quickstart:
        started.append(Quickstart(tmp_path / "run", *options))
        return started[-1]

    yield make
    for run in started:
        run.close()


def until(what: str, is_true: Callable[[], object]) -> None:
    bound = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < bound, f"waited {WITHIN_S:g} s for {what}"
        time.sleep(0.05)


def ledger(run: Quickstart) -> dict[str, str]:
    """Every group the rollout API ever acknowledged: key -> state."""
    connection = apsw.Connection(str(run.out / "queue" / "queue.sqlite"))
    return dict(connection.execute("SELECT key, state FROM groups"))


def gaps(keys: set[str]) -> list[str]:
    """Keys that their environment numbered and that are nowhere: lost between two others.

    Of an environment's last sends any may have been under way when it was killed, or when
    the run ended and the API with it: a later one can arrive where an earlier one did not.
    """
    numbers: dict[str, set[int]] = {}
    for key in keys:
        instance, number = key.rsplit("-", 1)
        numbers.setdefault(instance, set()).add(int(number))
    return [
        f"{instance}-{missing}"
        for instance, seen in numbers.items()
        for missing in sorted(set(range(max(seen) + 1 - SENDS_AT_ONCE)) - seen)
    ]


@pytest.mark.alone
def test_a_random_model_learns_and_the_last_line_reports_the_result(start) -> None:
    run = start()
    status, printed = run.finish()
    match = LAST_LINE.fullmatch(printed[-1])
    assert match and status == 0
    _, _, steps, version = match.groups()
    rows = run.rows()
    assert int(steps) == len(rows) == int(version) == rows[-1]["version"]
    assert rows[0]["reward_mean"] < 0.1
    assert sum(row["reward_mean"] for row in rows[-5:]) / 5 > 0.85
    assert max(row.get("publish_mismatch_max", 0.0) for row in rows) < 1e-3
    assert max(row["logprob_mismatch_max"] or 0.0 for row in rows) < 1e-3
    for name in ("report.html", "summary.json", "samples.jsonl", "model/model.safetensors"):
        assert (run.out / name).stat().st_size > 0


@pytest.mark.campaign
@pytest.mark.parametrize("victim", ["api", "environment"])
def test_a_run_survives_kill_9_without_lost_or_repeated_groups(start, victim: str) -> None:
    run = start("--steps", "12")
    until("the fourth step", lambda: len(run.rows()) >= 4)
    run.kill(victim)
    run.restart_by_hand(victim)
    _, printed = run.finish()
    assert LAST_LINE.fullmatch(printed[-1])
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, 13))
    trained = [key for row in rows for key in row["keys"]]
    assert len(trained) == len(set(trained))
    run.close()  # the restarted process is ours, and it owns the ledger
    acknowledged = ledger(run)
    done = {key for key, state in acknowledged.items() if state in ("acked", "committed")}
    assert set(trained) == done
    assert gaps(set(acknowledged)) == []


@pytest.mark.campaign
def test_status_names_the_frozen_process_of_a_run_and_no_other(start) -> None:
    run = start("--steps", "1000")
    until("the second step", lambda: len(run.rows()) >= 2)
    until("a run without findings", lambda: run.why() == [])
    for name, said, key in (
        ("inference", "inference server http://", "inference-silent"),
        ("environment", "environment ", "environment-silent"),
        ("trainer", "trainer ", "trainer-silent"),
    ):
        run.signal(name, signal.SIGSTOP)
        until(f"the word that only {name} is frozen", lambda: len(run.stalled()) == 1)
        [line] = run.stalled()[:1]
        assert line.startswith(said)
        if name != "trainer":
            until(
                "the trainer to wait for it",
                lambda: line.split(" has ")[0].split()[-1] in run.waits(),
            )
        until(f"the finding {key}", lambda: "".join(run.why()[:1]).startswith(key))
        run.signal(name, signal.SIGCONT)
        until("all processes to go on", lambda: not run.stalled() and not run.why())
    steps = len(run.rows())
    until("steps after the last stop", lambda: len(run.rows()) > steps + 1)
    os.kill(run.process.pid, signal.SIGINT)
    run.finish()


@pytest.mark.slow
def test_ctrl_c_ends_every_started_process_and_reports_it_in_one_line(start) -> None:
    run = start()
    until("the first step", run.rows)
    os.kill(run.process.pid, signal.SIGINT)
    status, printed = run.finish()
    assert status == 130
    assert "everything it started has ended" in printed[-1]
    left = subprocess.run(["pgrep", "-f", str(run.out)], capture_output=True, text=True)
    assert left.stdout == ""
