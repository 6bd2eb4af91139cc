"""Naive rollout API, the baseline of the benchmarks: the simplest implementation.

    uvicorn --app-dir benchmarks naive_api:app

A pydantic model in, ``jsonable_encoder`` out, a list in memory, gzip level 9 for clients
that accept it, all on the event loop, as the API of the original works. The queue is lost when
the process stops. Only the routes that the benchmarks call exist.
"""

from __future__ import annotations

import gzip
import math
from typing import Any

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.middleware.gzip import GZipMiddleware
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_ENV_WEIGHT = 0.01


class Trainer(BaseModel):
    batch_size: int
    max_token_len: int
    starting_step: int


class Env(BaseModel):
    max_token_length: int
    desired_name: str
    weight: float
    group_size: int
    min_batch_allocation: float | None = None


class EnvId(BaseModel):
    env_id: int


class Group(BaseModel):
    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None = None
    ref_logprobs: list[list[float]] | None = None
    messages: list[list[dict[str, Any]]] | None = None
    generation_params: dict[str, Any] | None = None
    inference_logprobs: list[list[float]] | None = None
    overrides: list[dict[str, Any]] | None = None
    group_overrides: dict[str, Any] | None = None
    images: Any | None = None
    env_id: int | None = None
    distill_token_ids: list[list[list[int]]] | None = None
    distill_logprobs: list[list[list[float]]] | None = None


Item = dict[str, Any]  # a posted group as a dict, with every key


class State:
    """Everything the server knows, as Python objects."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.envs: list[Env] = []
        self.queue: list[Item] = []
        self.buffers: dict[int, list[Item]] = {}
        self.formed: list[list[Item]] = []
        self.step = 0

    def add(self, group: Group) -> JSONResponse:
        item = {name: getattr(group, name) for name in Group.model_fields}
        env_id = group.env_id
        if env_id is None or not 0 <= env_id < len(self.envs):
            self.queue.append(item)
        elif len(group.tokens) == self.envs[env_id].group_size:
            self.queue.append(item)
        else:
            buffer = self.buffers.setdefault(env_id, [])
            buffer.append(item)
            sizes = [len(held["tokens"]) for held in buffer]
            chosen = subset(sizes, self.envs[env_id].group_size)
            self.queue += [buffer[i] for i in chosen]
            buffer[:] = [held for i, held in enumerate(buffer) if i not in chosen]
            size = sum(len(held["tokens"]) for held in buffer)
            return JSONResponse({"status": "buffered", "buffer_size": size})
        return JSONResponse({"status": "received"})


def subset(sizes: list[int], target: int) -> set[int]:
    """Indices whose sizes add up to ``target``: greedy first, then a table of all sums."""
    chosen: set[int] = set()
    rest = target
    for i, size in enumerate(sizes):
        if size <= rest:
            chosen.add(i)
            rest -= size
    if rest == 0:
        return chosen
    reachable = [{0}]
    for size in sizes:
        more = {total + size for total in reachable[-1] if total + size <= target}
        reachable.append(reachable[-1] | more)
    if target not in reachable[-1]:
        return set()
    chosen, rest = set(), target
    for i in range(len(sizes) - 1, -1, -1):
        if rest not in reachable[i]:
            chosen.add(i)
            rest -= sizes[i]
    return chosen


def exact_batch(queue: list[Item], batch_size: int) -> list[int] | None:
    """Places of a batch. Groups count only in packs as large as the largest group."""
    if sum(len(item["tokens"]) for item in queue) < batch_size:
        return None
    largest = max(len(item["tokens"]) for item in queue)
    bins: dict[int, list[int]] = {}
    packed: list[int] = []
    for place, item in enumerate(queue):
        size = len(item["tokens"])
        held = bins.setdefault(size, [])
        held.append(place)
        if len(held) * size == largest:
            packed += held
            bins[size] = []
    taken, total = [], 0
    for place in packed:
        taken.append(place)
        total += len(queue[place]["tokens"])
        if total >= batch_size:
            return taken if total == batch_size else None
    return None


class Gunzip:
    """Inflates request bodies whole, before routing."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", []))
        if b"gzip" not in headers.pop(b"content-encoding", b""):
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        body = gzip.decompress(body)
        headers[b"content-length"] = str(len(body)).encode()

        async def inflate() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(dict(scope, headers=list(headers.items())), inflate, send)


app = FastAPI()
app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=9)
app.add_middleware(Gunzip)
state = State()


@app.get("/info")
async def info() -> Response:
    size = state.trainer.batch_size if state.trainer else -1
    return JSONResponse({"batch_size": size})


@app.post("/register")
async def register(trainer: Trainer) -> Response:
    state.trainer, state.step = trainer, trainer.starting_step
    return JSONResponse({"uuid": 1})


@app.post("/register-env")
async def register_env(env: Env) -> Response:
    state.envs.append(env)
    return JSONResponse({"status": "success", "env_id": len(state.envs) - 1})


@app.post("/scored_data")
async def scored_data(group: Group) -> Response:
    return state.add(group)


@app.post("/scored_data_list")
async def scored_data_list(groups: list[Group]) -> Response:
    for group in groups:
        state.add(group)
    return JSONResponse({"status": "received", "groups_processed": len(groups)})


@app.get("/batch")
async def batch() -> Response:
    assert state.trainer is not None
    if not state.formed:
        while places := exact_batch(state.queue, state.trainer.batch_size):
            state.formed.append([state.queue[place] for place in places])
            gone = set(places)
            state.queue = [group for i, group in enumerate(state.queue) if i not in gone]
            state.step += 1
    served = state.formed.pop(0) if state.formed else None
    return JSONResponse(jsonable_encoder({"batch": served}))


@app.get("/status")
async def status() -> Response:
    return JSONResponse({"current_step": state.step, "queue_size": len(state.queue)})


@app.get("/status-env")
async def status_env(request: Request) -> Response:
    assert state.trainer is not None
    asking_id = EnvId.model_validate_json(await request.body()).env_id
    asking = state.envs[asking_id]
    total = sum(env.max_token_length * max(0.0, env.weight) for env in state.envs)
    minima = sum(env.min_batch_allocation or 0.0 for env in state.envs)
    largest = max((len(item["tokens"]) for item in state.queue), default=1)
    sequences: dict[int | None, int] = {}
    for item in state.queue:
        sequences[item["env_id"]] = sequences.get(item["env_id"], 0) + len(item["tokens"])
    own = sequences.pop(asking_id, 0)
    other_sequences = sum(math.ceil(count / largest) * largest for count in sequences.values())
    weight = asking.max_token_length * asking.weight / total
    return JSONResponse(
        {
            "current_step": state.step,
            "queue_size": (own + other_sequences) // asking.group_size,
            "unallocated_fraction": 1 - min(minima, 1.0),
            "self_queue_size": own // asking.group_size,
            "max_group_size": largest,
            "env_weight": max(MIN_ENV_WEIGHT, weight),
        }
    )
