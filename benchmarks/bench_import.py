"""Cost of ``import atroposlib.envs.base`` against ``import httpx``: seconds and memory.

    python benchmarks/bench_import.py [--repeats 7]

Each import runs in a fresh process, in turns, so that load on the machine affects all alike.
Compare the ratio of CPU seconds; a user waits for wall time. Memory is the highest resident
set.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

SUBJECTS = {
    "nothing": "pass",
    "httpx": "import httpx",
    "envs.base": "import atroposlib.envs.base",
    "client": "import atroposlib.client",
    "server_manager": "import atroposlib.generation.routing.manager",
}
MEASURE = """
import resource, sys, time
begun, cpu = time.perf_counter(), time.process_time()
{code}
seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
print(seconds, cpu_seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
KIB_PER_UNIT = 1 / 1024 if sys.platform == "darwin" else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="imports of each subject")
    repeats = parser.parse_args().repeats
    for code in SUBJECTS.values():
        measure(code)  # compiles to bytecode, and warms the page cache
    seconds: dict[str, list[list[float]]] = {name: [] for name in SUBJECTS}
    for _ in range(repeats):
        for name, code in SUBJECTS.items():
            seconds[name].append(measure(code))
    report({name: [*map(statistics.median, zip(*runs))] for name, runs in seconds.items()})


def measure(code: str) -> list[float]:
    """Wall seconds, CPU seconds and MiB of an import in a fresh process."""
    command = [sys.executable, "-c", MEASURE.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seconds, cpu_seconds, units = map(float, done.stdout.split())
    return [seconds, cpu_seconds, units * KIB_PER_UNIT / 1024]


def report(figures: dict[str, list[float]]) -> None:
    _, httpx_cpu_s, httpx_mib = figures["httpx"]
    empty_mib = figures["nothing"][2]
    print(f"{'import':16} wall s   CPU s  x httpx  peak MiB  x httpx")
    for name, (seconds, cpu_s, mib) in figures.items():
        print(
            f"{name:16} {seconds:6.3f} {cpu_s:7.3f} {cpu_s / httpx_cpu_s:8.2f} {mib:9.1f} "
            f"{(mib - empty_mib) / (httpx_mib - empty_mib):8.2f}"
        )
    print("memory ratios leave out what an empty interpreter takes")


if __name__ == "__main__":
    main()
