"""A sweep of the example plan, and a launcher that stands in for that of a run."""

from __future__ import annotations

import sys
from pathlib import Path

from example_trainer.launch.plan import Plan, read_plan
from example_trainer.launch.sweep.runs import SweepRun, read_runs
from example_trainer.settings.files import parse_override
from tests.trainer.launch.launch_plans import GSM8K

SWEEP = "sweep={lr: [1e-5, 2e-5], seed: [0, 1, 2]}"

# Notes its start in the file STARTS, then behaves as behaviour.json names for its run: "fail",
# "sleep" (until SIGTERM), "exit" (a status of 0 without a record), else the run is done.
LAUNCHER = """
import json, os, pathlib, signal, sys, time
file = pathlib.Path(sys.argv[-1])
folder, root = file.parent, file.parent.parent
plan = json.loads(file.read_text())
steps = plan["trainer"]["settings"]["training_steps"]
behaviour = root / "behaviour.json"
does = json.loads(behaviour.read_text()) if behaviour.exists() else {}
with (root / "starts").open("a") as starts:
    starts.write(f"{folder.name} {os.environ.get('CUDA_VISIBLE_DEVICES', '-')}\\n")
def record(state, problem=""):
    outcome = {"state": state, "steps": steps, "problem": problem}
    (folder / "launch").mkdir(exist_ok=True)
    (folder / "launch/outcome.json").write_text(json.dumps(outcome))
record("running")
with (folder / "metrics.jsonl").open("a") as metrics:
    metrics.write(json.dumps({"step": 1, "reward_mean": 0.5}) + "\\n")
what = does.get(folder.name)
if what == "fail":
    record("failed", "no memory")
    sys.exit(1)
if what == "exit":
    sys.exit(0)
if what == "sleep":
    def stop(*_):
        record("stopped")
        sys.exit(143)
    signal.signal(signal.SIGTERM, stop)
    (folder / "sleeps").touch()
    time.sleep(600)
(folder / "launch/ended.json").write_text(json.dumps({"step": steps}))
record("done")
"""
STAND_IN = (sys.executable, "-S", "-c", LAUNCHER)


def sweep(out: Path, *words: str) -> tuple[Plan, list[SweepRun]]:
    """The base and the runs of a sweep of the example plan."""
    given = [parse_override(word) for word in (f"out={out}", "training_steps=4", *words)]
    base = read_plan([GSM8K], given)
    return base, read_runs(base, lambda settings: read_plan([GSM8K], [*given, *settings]))
