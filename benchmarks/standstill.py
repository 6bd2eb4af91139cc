"""kill -9 of each process of `atropos run local`, and how long the steps stand still after it.

    python benchmarks/standstill.py [--out FOLDER] [--model DIR]

Two ranks, two inference servers and three environments with minima in each batch; figures are in
docs/log.md. A standstill is the longest time without a new row in
``metrics.jsonl`` from the kill on, until ``SETTLED`` rows have followed. The launcher starts what
was killed; nothing else is done. In the end the rows must be consecutive, and no row may be there
twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from atroposlib.testing.tiny import write_tiny_model
from atroposlib.trackers.jsonl import read_steps

REPO = Path(__file__).resolve().parents[1]
SETTLED = 6  # rows after a kill that end its observation
LOOK_S = 0.05
WITHIN_S = 300.0  # bound of an observation
PLAN = """
out: {out}
inference: {{engine: local, count: 2}}
environments:
  - {{script: environments/copy_server.py, config: {{env: {{group_size: 4, min_batch_allocation: 0.5}}}}}}
  - {{script: environments/copy_server.py, config: {{env: {{group_size: 4, min_batch_allocation: 0.25}}}}}}
  - {{script: environments/copy_server.py, config: {{env: {{group_size: 4, min_batch_allocation: 0.25}}}}}}
trainer:
  nproc: 2
  settings:
    {{model_name: {model}, device: cpu, seq_len: 64, batch_size: 16, gradient_accumulation_steps: 1,
     training_steps: 100000, recover_every_steps: 5, checkpoint_interval: 0}}
"""
# The kills in their order: a name, and words that only the command line of the process has.
VICTIMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("environment 0", ("environment-0.yaml",)),
    ("environment 1", ("environment-1.yaml",)),
    ("environment 2", ("environment-2.yaml",)),
    ("API", ("atroposlib.cli.run_api",)),
    ("server 0", ("atroposlib.inference",)),
    ("rank", ("example_trainer.grpo", "trainer.yaml")),
    ("torchrun", ("distributed.torchrun",)),
)


def processes_of(launcher: int) -> dict[int, str]:
    """Command lines of all processes below the launcher, by process id."""
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # ended meanwhile
        pid = int(folder.name)
        parents[pid], words[pid] = int(fields[1]), line

    def is_below(pid: int) -> bool:
        while pid > 1:
            if pid == launcher:
                return True
            pid = parents.get(pid, 0)
        return False

    return {pid: line for pid, line in words.items() if pid != launcher and is_below(pid)}


def victim_of(launcher: int, words: tuple[str, ...]) -> int:
    """The process to kill: of several alike the last, which no other of them started."""
    alike = [
        pid
        for pid, line in processes_of(launcher).items()
        if all(word in line for word in words)
        and ("distributed.torchrun" in words or "distributed.torchrun" not in line)
    ]
    if not alike:
        raise SystemExit(f"no process below {launcher} has {words}")
    return max(alike)


def rows(out: Path) -> list[int]:
    """Steps of all rows of the metrics, in the order of the file."""
    path = out / "metrics.jsonl"
    return [int(row["step"]) for row in read_steps(path)] if path.exists() else []


def wait_for_rows(launcher: subprocess.Popen[bytes], out: Path, count: int) -> float:
    """Wait until the metrics have ``count`` rows; the longest time without a new row, in s."""
    begun = last = time.monotonic()
    longest = 0.0
    seen = len(rows(out))
    while seen < count:
        time.sleep(LOOK_S)
        if launcher.poll() is not None:
            raise SystemExit(f"the launcher has ended with status {launcher.returncode}")
        now, lines = time.monotonic(), len(rows(out))
        longest = max(longest, now - last)
        if lines > seen:
            seen, last = lines, now
        if now - begun > WITHIN_S:
            raise SystemExit(f"{seen} of {count} rows after {WITHIN_S:.0f} s")
    return longest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the run (default: a new one)")
    parser.add_argument("--model", type=Path, help="model (default: a new tiny one)")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="standstill-")) / "run"
    model = options.model or write_tiny_model(out.parent / "model")
    plan = out.parent / "standstill.yaml"
    plan.write_text(PLAN.format(out=out, model=model))
    command = [sys.executable, "-m", "atroposlib.cli.atropos", "run", "local"]
    with (out.parent / "launcher.log").open("wb") as log:
        launcher = subprocess.Popen(
            [*command, "--config", str(plan)], cwd=REPO, stdout=log, stderr=log
        )
    try:
        print(f"steady: {wait_for_rows(launcher, out, 2 * SETTLED):.1f} s to the first rows")
        print(f"{'killed':16} {'step':>5} {'standstill s':>13}")
        for name, words in VICTIMS:
            before = rows(out)
            os.kill(victim_of(launcher.pid, words), signal.SIGKILL)
            seconds = wait_for_rows(launcher, out, len(before) + SETTLED)
            print(f"{name:16} {before[-1]:5} {seconds:13.1f}", flush=True)
        wait_for_rows(launcher, out, len(rows(out)) + SETTLED)
    finally:
        launcher.terminate()
        launcher.wait(60)
    steps = rows(out)
    repeated = len(steps) - len({*steps})
    missing = len({*range(1, max(steps) + 1)} - {*steps})
    print(f"{len(steps)} rows; {repeated} repeated, {missing} missing; in {out}")
    return 1 if repeated or missing else 0


if __name__ == "__main__":
    sys.exit(main())
