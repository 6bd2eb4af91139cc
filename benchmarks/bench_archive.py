"""Archive on against off, and the explorer over a large index. Figures are ratios and orders.

    python benchmarks/bench_archive.py --cost 40        CPU and acks of binary groups, on / off
    python benchmarks/bench_archive.py --rows 1000000   screens of the explorer

Cost: a server process with a durable store each; groups of 16 x 4,096 tokens are posted, claimed
and acked over HTTP on loopback. On and off take turns, and the least disturbed round is shown.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import numpy as np
import psutil

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.archive.records import BatchFact, RowFacts
from atroposlib.api.codec import read_group
from atroposlib.api.codec.formats import GROUP_MEDIA
from atroposlib.api.codec.row_facts import GroupFacts, RowFact
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.wire.binary import frames, pack_group

FRAMES = "application/x-atropos-groups"
TRAINER = {
    **{"wandb_group": "g", "wandb_project": "p", "batch_size": 16, "max_token_len": 8192},
    **{"checkpoint_dir": "c", "save_checkpoint_interval": 10, "starting_step": 0},
    **{"num_steps": 10**6},
}


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


def cost(bodies: list[bytes], archive: str) -> tuple[float, list[float]]:
    """CPU (ms per group) of one server, and the times of its acks (ms)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "atroposlib.cli.run_api", "--port", "0"]
        command += ["--data-dir", folder, "--archive", archive]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[3].rstrip(",")
            with httpx.Client(base_url=url, timeout=60) as http:
                generation = http.post("/register", json=TRAINER).json()["generation"]
                _rounds(http, bodies[:4], generation)
                watched = psutil.Process(server.pid)
                before = sum(watched.cpu_times()[:2])
                acks = _rounds(http, bodies, generation)
                time.sleep(1.5)  # the index is written behind
                spent = sum(watched.cpu_times()[:2]) - before
        finally:
            server.terminate()
            server.wait()
    return spent / len(bodies) * 1000, acks


def _rounds(http: httpx.Client, bodies: list[bytes], generation: int) -> list[float]:
    acks = []
    for body in bodies:
        http.post("/groups", content=frames([body]), headers={"content-type": FRAMES})
        reply = http.post(
            "/batches/claim",
            json={"generation": generation, "wait_s": 5},
            headers={"accept": FRAMES},
        )
        no, epoch = reply.headers["x-atropos-batch"], int(reply.headers["x-atropos-epoch"])
        began = time.perf_counter()
        http.post(f"/batches/{no}/ack", json={"generation": generation, "epoch": epoch})
        acks.append((time.perf_counter() - began) * 1000)
    return acks


def show_cost(groups: int, rounds: int = 3) -> None:
    bodies = [large_group(seed) for seed in range(groups)]
    found = {way: [cost(bodies, way) for _ in range(rounds)] for way in ("off", "on")}
    cpu = {way: min(one for one, _ in some) for way, some in found.items()}
    for name, of in (
        ("median", statistics.median),
        ("p95", lambda a: sorted(a)[len(a) * 95 // 100]),
    ):
        ack = {way: min(of(acks) for _, acks in some) for way, some in found.items()}
        print(f"ack {name}: {ack['on'] / ack['off']:.2f} of off ({ack['off']:.1f} ms)")
    print(
        f"CPU of post, claim, ack: {cpu['on'] / cpu['off']:.2f} of off ({cpu['off']:.2f} ms)"
    )


def show_screens(rows: int) -> None:
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        index, gid = Index(Path(folder) / "index.sqlite"), 0
        began = time.perf_counter()
        while gid * 16 < rows:
            records: list[RowFacts | BatchFact] = []
            for _ in range(64):
                gid += 1
                facts = tuple(
                    RowFact(
                        *(
                            chance.random(),
                            chance.randrange(4096),
                            100,
                            3,
                            3,
                            -0.5,
                            None,
                            1,
                            0,
                        ),
                        *(chance.choice(["stop", "length"]), "ok", 1.0),
                    )
                    for _ in range(16)
                )
                named = GroupFacts(f"item {gid % 5000}", f"g/{gid}", facts)
                env = f"env {gid % 8}"
                records.append(RowFacts(gid, env, float(gid), 3, "committed", named))
            members = tuple(range(gid - 63, gid + 1))
            where = (gid // 64, "committed", 1, 1, 1, 0.0, 1, "", 1024, None, members)
            index.write([*records, BatchFact(*where)])
        spent = time.perf_counter() - began
        print(f"{gid * 16} rows written, {spent / gid * 1000:.2f} ms per group of 16")
        store = SqliteStore(Path(folder) / "store")
        parsed = read_group(large_group(0), GROUP_MEDIA)
        store.put([parsed], store.load().revision, lambda buffer, size: ())
        explorer = Explorer(index, store)
        indexer = Indexer(index, store, str)
        indexer.complete(again=True)
        screens: dict[str, Callable[[], object]] = {
            "first list": lambda: explorer.rollouts({}),
            "by reward, in one environment": lambda: explorer.rollouts(
                {"env": "env 3", "reward": "0.9..1", "sort": "-reward"}
            ),
            "one item": lambda: explorer.rollouts({"item": "item 17"}),
            "finish reason and outcome": lambda: explorer.rollouts(
                {"finish": "length", "outcome": "ok"}
            ),
            "one batch": lambda: explorer.rollouts({"batch_no": "500"}),
            "curve": lambda: explorer.curves({"keys": "reward"}),
            "histogram": lambda: explorer.histogram({"env": "env 3"}),
            "group": lambda: explorer.group(1, {}),
            "4,096 tokens": lambda: explorer.row(1, 0, {}),
        }
        for name, call in screens.items():
            began = time.perf_counter()
            size = len(msgspec.json.encode(call()))
            print(f"{name}: {(time.perf_counter() - began) * 1000:.1f} ms, {size} bytes")
        index.close()
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", type=int, default=0, help="groups of a round")
    parser.add_argument("--rows", type=int, default=0, help="rollouts of the index")
    options = parser.parse_args()
    if options.cost:
        show_cost(options.cost)
    if options.rows:
        show_screens(options.rows)


if __name__ == "__main__":
    main()
