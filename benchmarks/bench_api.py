"""Rollout API compared with a naive API and a bare HTTP server, in the same run.

    python benchmarks/bench_api.py                         under 4 minutes
    python benchmarks/bench_api.py --full --write          every figure, and the page
    python benchmarks/bench_api.py --only posts,batches    some scenarios

Each server is a separate process on the loopback interface; ours writes durably. The servers
take turns, and the least disturbed repeat is shown.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from apibench.figures import Results, Section
from apibench.processes import machine
from apibench.scenarios import (
    backlog,
    batches,
    blocking,
    memory,
    picture_step,
    posts,
    queue_length,
    scale,
    sustained,
)
from apibench.sizes import FULL, PLAIN, SMOKE, Plan
from apibench.tables import page, summary, table, with_page

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results_api.json"
PAGE = HERE / "README.md"
SCENARIOS: dict[str, Callable[[Plan], Section]] = {
    "posts": posts.run,
    "batches": batches.run,
    "sustained": sustained.run,
    "blocking": blocking.run,
    "queue": queue_length.run,
    "memory": memory.run,
    "backlog": backlog.run,
    "scale": scale.run,
    "pictures": picture_step.run,
}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end too
    options = parse_args()
    chosen = options.only.split(",") if options.only else list(SCENARIOS)
    plan = FULL if options.full else SMOKE if options.smoke else PLAIN
    plan = replace(plan, scratch=options.scratch, source=options.source)
    before, began = os.getloadavg()[0], time.monotonic()
    sections = []
    for name in chosen:
        start = time.monotonic()
        section = SCENARIOS[name](plan)
        sections.append(section)
        print(f"\n## {section.title} ({time.monotonic() - start:.0f} s)\n\n{table(section)}")
    results = Results(
        machine=machine(),
        taken=time.strftime("%Y-%m-%d"),
        plan=plan.name,
        load=(before, os.getloadavg()[0]),
        sections=tuple(sections),
    )
    print(f"\n{summary(results)} {time.monotonic() - began:.0f} s in all.")
    if options.write:
        RESULTS.write_bytes(
            msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"
        )
        write_page()


def write_page() -> None:
    """The generated part of the page, from the stored results."""
    results = msgspec.json.decode(RESULTS.read_bytes(), type=Results)
    PAGE.write_text(
        with_page(PAGE.read_text(encoding="utf-8"), page(results)), encoding="utf-8"
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--full", action="store_true", help="every figure, with all repeats (12 minutes)")
    add("--smoke", action="store_true", help="tiny sizes: does every scenario still run?")
    add("--only", help=f"some of {','.join(SCENARIOS)}")
    add("--write", action="store_true", help="keep the results and rewrite the page")
    add("--scratch", type=Path, help="where stores are kept (the system's temporary folder)")
    add("--source", type=Path, help="measure the API of another checkout")
    return parser.parse_args()


if __name__ == "__main__":
    main()
