"""An API over ASGI for the tests of its endpoints, with a clock and a restart."""

from __future__ import annotations

import httpx

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store

TRAINER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 4,
    "max_token_len": 64,
    "checkpoint_dir": "ckpt",
    "save_checkpoint_interval": 10,
    "starting_step": 0,
    "num_steps": 40,
}
ENV = {"max_token_length": 64, "desired_name": "e", "weight": 1.0, "group_size": 2}


class Api:
    """A running API, its clock, and a restart."""

    def __init__(self, folder, store="memory"):
        self.folder, self.store_name, self.now = folder, store, 1000.0
        self.begin()

    def begin(self):
        self.app = create_app(open_store(self.store_name, self.folder), lambda: self.now)
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://api")

    async def end(self):
        await self.http.aclose()
        self.app.state.service.close()

    async def restart(self):
        await self.end()
        self.begin()

    async def get(self, path, **more):
        return (await self.http.get(path, **more)).json()

    async def post(self, path, body, **more):
        return (await self.http.post(path, json=body, **more)).json()

    async def started(self, batch_size=4, envs=(ENV,)):
        await self.post("/register", TRAINER | {"batch_size": batch_size})
        await self.get("/batch")
        return [(await self.post("/register-env", env))["env_id"] for env in envs]


def group(rows=2, mark=1, **more):
    return {
        "tokens": [[mark, 7]] * rows,
        "masks": [[-100, 7]] * rows,
        "scores": [0.5] * rows,
    } | more


def marks(reply):
    return [one["tokens"][0][0] for one in reply["batch"] or []]
