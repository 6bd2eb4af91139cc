"""Each view and filter of the page over a large index: CPU of the call and of its JSON.

python benchmarks/bench_archive.py --rows 1000000
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import (
    BatchFact,
    EventFact,
    NotesFact,
    Record,
    RowFacts,
    StepFact,
)
from atroposlib.api.codec import read_group
from atroposlib.api.codec.formats import GROUP_MEDIA
from atroposlib.api.codec.row_facts import GroupFacts, RowFact
from atroposlib.api.store.sql.claim import BatchRow
from atroposlib.api.store.sql.run import LoadRun
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.wire.binary import pack_group
from atroposlib.wire.notes import GroupNotes


def large_group(seed: int) -> bytes:
    """16 x 4,096 tokens with logprobs and versions, as arrays."""
    chance = np.random.default_rng(seed)
    tokens_G_T = chance.integers(0, 150_000, (16, 4096)).tolist()
    masks_G_T = [[-100] * 512 + row[512:] for row in tokens_G_T]
    logprobs_G_T = (-chance.exponential(size=(16, 4096))).tolist()
    versions_G_T = [[-1] * 512 + [0] * 3584] * 16
    group = {"tokens": tokens_G_T, "masks": masks_G_T, "versions": versions_G_T}
    group |= {"scores": chance.normal(size=16).tolist(), "inference_logprobs": logprobs_G_T}
    return pack_group(group, compress=False)


FILTERS = {  # filter -> a frequent value, a rare value
    "env": ("env 3", "env 7"),
    "state": ("committed", "pending"),
    "outcome": ("ok", "error"),
    "finish": ("length", "abort"),
    "why": ("masked", "stale"),
    "item": ("item 17", "none"),
    "step": ("100..900", "500"),
    "batch_no": ("100..900", "500"),
    "version": ("500", "3"),
    "reward": ("0.9..1", "2..3"),
    "diff_min": ("0.5", "9"),
}
SORTS = ("-arrived", "arrived", "reward", "-reward", "-diff_max", "-n_tokens", "-step")


def record_rows(index: Index, rows: int) -> float:
    """Write a run of ``rows`` rollouts as the records of posts and notes; return the seconds.

    Nothing is posted: a million posts take a server an hour, and only the index is timed.
    """
    chance, began, gid = random.Random(0), time.perf_counter(), 0
    while gid * 16 < rows:
        no, first = gid // 64 + 1, gid + 1
        members = tuple(range(first, first + 64))
        open_ = (gid + 192) * 16 >= rows  # the last batches are not trained on
        groups = [
            recorded_group(chance, gid, no, stale=chance.random() < 0.005) for gid in members
        ]
        records: list[Record] = [*groups]
        gid = members[-1]
        if not open_:
            trained = tuple(group.gid for group in groups if group.state == "pending")
            batch = BatchRow(
                no=no,
                state="committed",
                n_seq=1024,
                generation=1,
                first_epoch=1,
                epoch=1,
                tries=1,
                claim_id=None,
                lease_until=0.0,
                world_size=1,
                ranks="",
                min_version=None,
                dropped=0,
            )
            records.append(BatchFact(batch, trained))
            records += [NotesFact(gid, no, recorded_notes(chance)) for gid in trained]
            values = {"loss": chance.random(), "reward": chance.random()}
            records.append(StepFact("trainer", "trainer", no, float(gid), values, no))
            records.append(EventFact(f"e-{no}", "acked", float(gid), {"no": no}))
        index.write(records)
    return time.perf_counter() - began


def recorded_notes(chance: random.Random) -> GroupNotes:
    """Notes of the trainer about 16 rows; 1 in 20 is masked."""
    notes = GroupNotes.empty(0, [1] * 16)
    notes.advantages[:] = [chance.gauss(0, 1) for _ in range(16)]
    notes.diff_mean[:] = 0.01
    notes.diff_max[:] = [chance.expovariate(3) for _ in range(16)]
    notes.reasons[:] = ["masked" if chance.random() < 0.05 else None for _ in range(16)]
    return notes


def recorded_group(chance: random.Random, gid: int, no: int, stale: bool) -> RowFacts:
    """The facts of 16 rows, mostly ok; 1 in 1,000 an error, 1 in 500 aborted."""
    facts = []
    for _ in range(16):
        luck = chance.random()
        finish = "abort" if luck < 0.002 else "length" if luck < 0.1 else "stop"
        outcome = "error" if luck < 0.001 else "truncated" if luck < 0.05 else "ok"
        reward, n_tokens = round(chance.random() ** 2, 3), chance.randrange(200, 4096)
        version = max(0, no - chance.randrange(3))
        facts.append(
            RowFact(reward, n_tokens, 100, version, no, -0.5, None, 1, 0, finish, outcome, 1.0)
        )
    named = GroupFacts(f"item {chance.randrange(5000)}", f"g/{gid}", tuple(facts))
    env = f"env {min(7, int(chance.expovariate(0.5)))}"
    return RowFacts(gid, env, float(gid), no, "dropped" if stale else "pending", named)


def filter_queries() -> dict[str, dict[str, str]]:
    """Each filter alone in every order, and each pair of filters in the usual order."""
    alone = [{name: value} for name, values in FILTERS.items() for value in values]
    queries = [filters | {"sort": sort} for filters in ({}, *alone) for sort in SORTS]
    queries += [
        {a: first, b: second}
        for a, b in itertools.combinations(FILTERS, 2)
        for first in FILTERS[a]
        for second in FILTERS[b]
    ]
    return {
        " ".join(f"{name}:{value}" for name, value in query.items()): query
        for query in queries
    }


def time_query(call: Callable[[], object]) -> float:
    """CPU time (ms) of a call and of its JSON, the least of two."""
    times = []
    for _ in range(2):
        began = time.process_time()
        msgspec.json.encode(call())
        times.append((time.process_time() - began) * 1000)
    return min(times)


def show_screens(rows: int, folder: Path) -> None:
    fresh = not (folder / "index.sqlite").exists()
    index = Index(folder / "index.sqlite")
    if fresh:
        spent = record_rows(index, rows)
        print(
            f"written in {spent:.0f} s, {spent / rows * 16e3:.2f} ms a group of 16 with notes"
        )
    [(rows,)] = index.read("SELECT COUNT(*) FROM rollout")
    size = (folder / "index.sqlite").stat().st_size
    print(f"{rows} rollouts, {size / rows:.0f} bytes each")
    store = SqliteStore(folder / "store")
    if not store.kept_gids(0, 1):
        parsed = read_group(large_group(0), GROUP_MEDIA)
        store.put([parsed], store.ask(LoadRun()).revision, lambda buffer, size: ())
    explorer = Explorer(index, store)
    views: dict[str, Callable[[], object]] = {
        "runs": lambda: explorer.runs({}),
        "first list": lambda: explorer.rollouts({"limit": "200"}),
        "batches": lambda: explorer.batches({}),
        "batch": lambda: explorer.batch(max(1, rows // 2048), {}),
        "curves": lambda: explorer.curves({"keys": "reward,loss"}),
        "curves of an environment": lambda: explorer.curves(
            {"keys": "reward,reward_std", "env": "env 3"}
        ),
        "weights": lambda: explorer.weights({}),
        "events": lambda: explorer.events({}),
        "group of 16 x 4,096": lambda: explorer.group(1, {}),
        "4,096 tokens": lambda: explorer.row(1, 0, {}),
    }
    for name, call in views.items():
        print(f"{name}: {time_query(call):.1f} ms of CPU")
    for kind, read in (("list", explorer.rollouts), ("histogram", explorer.histogram)):
        times = {}
        for name, query in filter_queries().items():
            if kind == "histogram" and query.pop("sort", "-arrived") != "-arrived":
                continue
            times[name] = time_query(lambda: read(query))
        worst = sorted(times, key=times.__getitem__, reverse=True)
        print(
            f"{kind}, {len(times)} filters and pairs: median "
            f"{statistics.median(times.values()):.1f} ms, over 100 ms: "
            f"{sum(milliseconds > 100 for milliseconds in times.values())}"
        )
        for name in worst[:8]:
            print(f"    {times[name]:.1f} ms  {name}")
    index.close()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rollouts of the index")
    parser.add_argument("--folder", type=Path, help="keep the index here, and use it again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        show_screens(options.rows, options.folder or Path(folder))


if __name__ == "__main__":
    main()
