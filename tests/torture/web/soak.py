"""A day of training, as fast as it goes: memory and disk end where they were early on."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from atroposlib.api.server import create_app
from atroposlib.api.store.sqlite import SqliteStore
from tests.torture.figures import MB, Figures, fast_folder, settled_rss_bytes, slope
from tests.torture.web.asgi_caller import App, Request, ask

GROUPS_PER_BATCH = 64
ROWS = 4
TOKENS = 128  # per row
SAMPLES = 40  # of memory and disk, over the run
# A leak of one small object per group passes both at any length of the run.
MAY_GROW_PER_GROUP = 400  # bytes
MAY_GROW = 16 * MB

REGISTRATION = {
    **{"wandb_group": "", "wandb_project": "", "batch_size": GROUPS_PER_BATCH * ROWS},
    **{"max_token_len": TOKENS, "checkpoint_dir": "", "save_checkpoint_interval": 1},
    **{"starting_step": 0, "num_steps": 10**6, "commits": True},
}


class Day:
    """One API in this process, fed and drained batch by batch."""

    def __init__(self, app: App, seed: int) -> None:
        self._app, self._rng, self._posted = app, random.Random(seed), 0
        self.generation = 0

    async def call(self, path: str, body: Any) -> Any:
        content = json.dumps(body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        reply = await ask(self._app, Request("POST", path, headers, content))
        assert reply.status == 200, f"{path}: {reply.status} {bytes(reply.body[:500])!r}"
        return json.loads(reply.body)

    async def begin(self) -> None:
        self.generation = (await self.call("/register", REGISTRATION))["generation"]

    def group(self) -> dict[str, Any]:
        self._posted += 1
        rows = [[self._rng.randrange(50_000) for _ in range(TOKENS)] for _ in range(ROWS)]
        return {
            "tokens": rows,
            "masks": [[-100] * 32 + row[32:] for row in rows],
            "scores": [self._rng.random() for _ in rows],
            "inference_logprobs": [[1.0] * 32 + [-0.5] * (TOKENS - 32) for _ in rows],
            "idempotency_key": f"soak/{self._posted}",
            "messages": [[{"role": "user", "content": "how many?"}]] * ROWS,
        }

    async def batch(self, no: int) -> None:
        for _ in range(GROUPS_PER_BATCH // 16):
            await self.call("/groups", [self.group() for _ in range(16)])
        wish = {"generation": self.generation, "claim_id": f"soak {no}"}
        got = await self.call("/batches/claim", wish)
        assert got["batch_no"] == no and len(got["batch"]) == GROUPS_PER_BATCH, got
        receipt = {"generation": self.generation, "epoch": got["epoch"]}
        await self.call(f"/batches/{no}/ack", receipt)
        if no % 10 == 0:
            await self.call(f"/batches/{no}/commit", {"generation": self.generation})


def disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def soak_campaign(batches: int, seed: int = 0) -> Figures:
    return asyncio.run(soak(batches, seed))


async def soak(batches: int, seed: int = 0) -> Figures:
    """Raises AssertionError if memory or disk keeps growing after the first third."""
    rss: list[float] = []
    disk: list[float] = []
    with fast_folder() as folder:
        store = SqliteStore(folder, segment_bytes=4 * MB)  # sealed and freed many times
        day = Day(create_app(store), seed)
        await day.begin()
        for no in range(1, batches + 1):
            await day.batch(no)
            if no % max(1, batches // SAMPLES) == 0:
                rss.append(float(settled_rss_bytes()))
                disk.append(float(disk_bytes(folder)))
        store.close()
    warm = len(rss) // 3
    figures = Figures({"batches": batches, "groups": batches * GROUPS_PER_BATCH})
    for name, values in (("RSS", rss[warm:]), ("disk", disk[warm:])):
        per_batch = slope(values) * len(rss) / batches
        figures[f"MB {name} at the end"] = values[-1] / MB
        figures[f"bytes {name} per group, slope"] = per_batch / GROUPS_PER_BATCH
        grown = values[-1] - values[0]
        allowed = max(MAY_GROW, MAY_GROW_PER_GROUP * batches * GROUPS_PER_BATCH)
        assert grown < min(allowed, 2 * MAY_GROW), f"{name}: {grown / MB:.1f} MB more"
    return figures
