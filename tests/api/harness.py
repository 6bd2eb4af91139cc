"""An API over ASGI for the tests of its endpoints, with a clock and a restart."""

from __future__ import annotations

import json

import httpx

from atroposlib.api.server import create_app
from atroposlib.api.store import DEFAULT_MAX_BYTES, open_store

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
JSON = {"Content-Type": "application/json"}


class Api:
    """A running API, its clock, and a restart."""

    def __init__(
        self, folder, store="memory", max_bytes=DEFAULT_MAX_BYTES, archive_bytes=0, **app
    ):
        self.folder, self.store_name, self.now = folder, store, 1000.0
        self.bounds, self.app_options = (max_bytes, archive_bytes), app
        self.begin()

    def begin(self):
        store = open_store(self.store_name, self.folder, *self.bounds)
        self.app = create_app(store, lambda: self.now, **self.app_options)
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://api")

    @property
    def service(self):
        return self.app.state.service

    async def end(self):
        await self.http.aclose()
        self.service.close()

    async def restart(self):
        await self.end()
        self.begin()

    async def get(self, path, **more):
        return (await self.http.get(path, **more)).json()

    async def post(self, path, body, **more):
        return (await self.http.post(path, json=body, **more)).json()

    async def started(self, batch_size=4, envs=(ENV,), **trainer):
        generation = await self.registered(batch_size=batch_size, **trainer)
        if trainer.get("commits"):
            await self.claim(generation)
        else:
            await self.get("/batch")
        return [(await self.post("/register-env", env))["env_id"] for env in envs]

    async def registered(self, **trainer):
        """The generation of a trainer that registers."""
        return (await self.post("/register", TRAINER | trainer))["generation"]

    async def claim(self, generation, **more):
        return await self.post("/batches/claim", {"generation": generation} | more)

    async def ack(self, claimed, generation, **more):
        body = {"generation": generation, "epoch": claimed["epoch"]} | more
        return await self.post(f"/batches/{claimed['batch_no']}/ack", body)

    async def trained(self, generation, **more):
        """Claim and ack; the marks of the batch, or None if there is none."""
        claimed = await self.claim(generation, **more)
        if claimed["batch"] is None:
            return None
        await self.ack(claimed, generation)
        return marks(claimed)

    async def half_trained(self):
        """Start a run with two groups, of which the first is in a committed batch."""
        [env_id] = await self.started(batch_size=2, commits=True)
        generation = self.service.context.view.generation
        for mark in (1, 2):
            await self.post("/scored_data", sampled(0, mark=mark, env_id=env_id))
        await self.trained(generation)
        await self.post("/batches/1/commit", {"generation": generation})

    async def hang_up_after(self, method, path, body=None):
        """Send a request whose client disconnects before the response; return the sent messages."""
        # As httpx writes it: a retried post is recognised by its bytes.
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        parts = [{"type": "http.request", "body": content, "more_body": False}]
        answer = []

        async def receive():
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message):
            answer.append(message)

        length = str(len(content)).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [
                (b"content-length", length),
                (b"content-type", b"application/json"),
                (b"host", b"api"),
            ],
            "http_version": "1.1",
        }
        await self.app(scope, receive, send)
        return answer


def group(rows=2, mark=1, **more):
    return {
        "tokens": [[mark, 7]] * rows,
        "masks": [[-100, 7]] * rows,
        "scores": [0.5] * rows,
    } | more


def sampled(version, rows=2, mark=1, **more):
    """A group whose trained tokens were sampled by policy ``version``."""
    logprobs = {"inference_logprobs": [[1.0, -0.5]] * rows}
    return group(rows, mark, versions=[[-1, version]] * rows) | logprobs | more


def marks(reply):
    return [one["tokens"][0][0] for one in reply["batch"] or []]
