"""Run one mutant before its judge: exit status 9 if it was noticed, 0 if it survived.

python -m tests.torture.queue.mutation_job NAME EXAMPLES     ("none" is the code as it is)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.torture.figures import Figures

ROOT = Path(__file__).resolve().parents[3]
UNCHANGED = "none"
MOST_S = 900.0  # on a loaded machine
NOTICED = 9  # an uncaught exception exits with 1, and proves nothing


def judge(name: str, examples: int) -> None:
    """Raises whatever the judge raises."""
    from tests.torture.disk.bit_rot import bit_rot_campaign
    from tests.torture.disk.power_cuts import power_cut_campaign
    from tests.torture.queue.mutants import MUTANTS
    from tests.torture.queue.mutation import Judge
    from tests.torture.queue.queue_machine import QueueMachine, run_machine

    chosen = list(Judge)
    if name != UNCHANGED:
        who, patch = MUTANTS[name]
        chosen = [who]
        patch()
    if Judge.MACHINE in chosen:
        run_machine(QueueMachine, examples, repeatable=True)
    if Judge.POWER in chosen:
        power_cut_campaign(examples)
    if Judge.ROT in chosen:
        bit_rot_campaign(min(examples, 100))


def run_job(name: str, examples: int) -> tuple[str, int, str]:
    """(name, exit status, the last words) of one mutant in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.queue.mutation_job", name, str(examples)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=MOST_S,
    )
    return name, done.returncode, done.stderr[-2000:]


def mutation_campaign(names: Iterable[str], examples: int, at_once: int = 2) -> Figures:
    """Raises AssertionError if one survives, or the code as it is does not."""
    with ThreadPoolExecutor(at_once) as pool:
        jobs = list(pool.map(lambda name: run_job(name, examples), [UNCHANGED, *names]))
    (_, control, words), *mutants = jobs
    assert control == 0, f"the code as it is was found wanting:\n{words}"
    survived = [name for name, status, _ in mutants if status == 0]
    odd = [(name, words) for name, status, words in mutants if status not in (0, NOTICED)]
    assert survived == [] and odd == [], f"survived: {survived}; broken: {odd}"
    return Figures({"mutants": len(mutants), "noticed": len(mutants) - len(survived)})


def main() -> int:
    name, examples = sys.argv[1], int(sys.argv[2])
    try:
        judge(name, examples)
    except AssertionError as noticed:
        print(f"noticed: {noticed}"[:2000], file=sys.stderr)
        return NOTICED
    return 0


if __name__ == "__main__":
    sys.exit(main())
