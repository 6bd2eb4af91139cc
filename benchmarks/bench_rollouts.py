"""Rollouts as data: seconds and memory of reading and exporting a large archive with its texts.

python benchmarks/bench_rollouts.py --rows 1000000

The archive of short rollouts is made once: groups go into the store in transactions of 500, and
their facts into the index, without posts. The compared reader reads the same index without texts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.load import load_rollouts
from atroposlib.api.archive.records import RowFacts, RunFacts
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.codec import read_group
from atroposlib.api.codec.formats import GROUP_MEDIA
from atroposlib.api.codec.row_facts import facts_of
from atroposlib.api.store.sql.run import LoadRun
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.cli.collect.rollout_files import write_jsonl, write_parquet
from atroposlib.testing.tiny import ASCII_ALPHABET, write_char_tokenizer
from atroposlib.wire.binary import PackedGroup, pack_group

ROWS = 16  # of a group
TEMPLATES = 512
PUT_GROUPS = 500


def short_group(seed: int, messages: bool) -> bytes:
    """16 rollouts of 24 prompt and 16 answer tokens, with logprobs and named rewards."""
    chance = np.random.default_rng(seed)
    prompt = chance.integers(4, 90, 24).tolist()
    tokens_G_T = [prompt + chance.integers(4, 90, 16).tolist() for _ in range(ROWS)]
    scores = chance.integers(0, 2, ROWS).astype(float).tolist()
    group = {
        "tokens": tokens_G_T,
        "masks": [[-100] * 24 + row[24:] for row in tokens_G_T],
        "scores": scores,
        "inference_logprobs": (-chance.exponential(size=(ROWS, 40))).tolist(),
        "versions": [[-1] * 24 + [0] * 16] * ROWS,
        "metadata": {
            "item": f"{seed}",
            "named_rewards": [{"exact": score} for score in scores],
        },
    }
    if messages:
        group["messages"] = [
            [
                {"role": "user", "content": f"What is {seed} + {g}?"},
                {"role": "assistant", "content": f"The sum is {seed + g}."},
            ]
            for g in range(ROWS)
        ]
    return pack_group(group, compress=False)


def make_archive(folder: Path, rows: int, messages: bool) -> float:
    """Make an archive of ``rows`` rollouts; return the seconds."""
    began = time.perf_counter()
    tokenizer = write_char_tokenizer(folder / "tokenizer", ASCII_ALPHABET)
    groups = [
        read_group(short_group(seed, messages), GROUP_MEDIA) for seed in range(TEMPLATES)
    ]
    facts = [facts_of(PackedGroup(group.payload)) for group in groups]
    with closing(SqliteStore(folder, synchronous="OFF")) as store:
        index = Index(store.archive)
        facts_of_run = RunFacts("bench", False, None, str(tokenizer), ("sums",))
        index.set_value("run", msgspec.json.encode(facts_of_run).decode())
        revision, order = store.ask(LoadRun()).revision, itertools.cycle(range(TEMPLATES))
        keys = itertools.count()
        for _ in range(0, rows, ROWS * PUT_GROUPS):
            chosen = list(itertools.islice(order, PUT_GROUPS))
            # A key each: a group without one would be taken for a repeat of its template.
            batch = [replace(groups[at], key=f"{next(keys)}") for at in chosen]
            stored = store.put(batch, revision, lambda buffer, size: (), doubt=False)
            index.write(
                [
                    RowFacts(kept.gid, "sums", 0.0, 0, "pending", facts[at])
                    for kept, at in zip(stored, chosen)
                ]
            )
        index.close()
    return time.perf_counter() - began


def measured_task(folder: Path, task: str) -> dict[str, float]:
    """Seconds and megabytes of a task in this process."""
    began, spent = time.perf_counter(), time.process_time()
    count = TASKS[task](folder)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds, cpu = time.perf_counter() - began, time.process_time() - spent
    return {"rollouts": count, "seconds": seconds, "cpu": cpu, "MB": most}


def read_pandas(folder: Path) -> int:
    return len(load_rollouts(folder, "pandas", text=True))


def read_all(folder: Path, text: bool) -> int:
    """Read all records and drop them."""
    reader = RunRollouts(folder, None, {}, text)
    deque(reader.blocks(), maxlen=0)
    return reader.count


def write_all(folder: Path, write: Callable[..., int]) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return write(partial(RunRollouts, folder, None, {}, True), Path(scratch) / "file")


TASKS: dict[str, Callable[[Path], int]] = {
    "numbers": partial(read_all, text=False),
    "texts": partial(read_all, text=True),
    "jsonl": partial(write_all, write=write_jsonl),
    "parquet": partial(write_all, write=write_parquet),
    "pandas": read_pandas,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one")
    parser.add_argument("--task", choices=TASKS, help="of the archive in --folder")
    options = parser.parse_args()
    if options.task:
        print(json.dumps(measured_task(options.folder, options.task)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        for kind in ("tokens", "messages"):
            place = folder / f"{kind}-{options.rows}"
            if not place.exists():
                seconds = make_archive(place, options.rows, kind == "messages")
                print(f"{kind}: archive of {options.rows} rollouts in {seconds:.0f} s")
            for task in TASKS:
                if task == "parquet" and find_spec("pyarrow") is None:
                    continue
                if task == "pandas" and find_spec("pandas") is None:
                    continue
                words = ["--folder", str(place), "--task", task]
                printed = subprocess.run(
                    [sys.executable, __file__, *words],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                figures = json.loads(printed.stdout)
                line = (
                    "{rollouts:.0f} rollouts, {seconds:.1f} s, {cpu:.1f} s of CPU, {MB:.0f} MB"
                )
                print(f"{kind} {task}: {line.format(**figures)}", flush=True)


if __name__ == "__main__":
    main()
