"""Hostile requests: valid requests broken in one or more random ways."""

from __future__ import annotations

import gzip
import json
import random
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from safetensors.numpy import save

from tests.torture.web.asgi_caller import Request

JSON = b"application/json"
SAFETENSORS = b"application/x-safetensors"
GROUPS = b"application/x-atropos-groups"


def group(rows: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "tokens": [[1, 5, 9]] * rows,
        "masks": [[-100, -100, 9]] * rows,
        "scores": [0.5] * rows,
        "inference_logprobs": [[1.0, 1.0, -0.25]] * rows,
        **more,
    }


def binary_group(rows: int = 2) -> bytes:
    tensors = {
        "tokens": np.array([1, 5, 9] * rows, np.int32),
        "seq_lens": np.array([3] * rows, np.int32),
        "mask": np.array([0, 0, 1] * rows, np.uint8),
        "logprobs": np.array([1.0, 1.0, -0.25] * rows, np.float32),
        "scores": np.array([0.5] * rows, np.float32),
    }
    return bytes(save(tensors, metadata={"idempotency_key": "binary"}))


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(body)) + body for body in bodies)


RICH = group(
    advantages=[[0.0, 0.0, 0.5]] * 2,
    ref_logprobs=[[0.0, 0.0, -0.5]] * 2,
    messages=[[{"role": "user", "content": "\u00e9"}]] * 2,
    generation_params={"temperature": 1.0},
    overrides=[{}, {"set_advantage_to_zero": True}],
    group_overrides={"group_size": 4},
    versions=[[-1, -1, 3]] * 2,
    finish_reasons=["stop", None],
    outcomes=["ok", "truncated"],
    group_id="p/1",
    idempotency_key="rich",
    metadata={"item": 3},
    distill_token_ids=[[[1, 2]] * 3] * 2,
    distill_logprobs=[[[-0.1, -0.2]] * 3] * 2,
)
REGISTER = {
    **{"wandb_group": "g", "wandb_project": "p", "batch_size": 8, "max_token_len": 64},
    **{"checkpoint_dir": "c", "save_checkpoint_interval": 1, "starting_step": 0},
    **{"num_steps": 10, "commits": False, "max_staleness": 4, "staleness_policy": "mask"},
}
ENV = {"max_token_length": 64, "desired_name": "e", "weight": 1.0, "group_size": 4}
OWNER = {"generation": 1, "epoch": 1}

# (method, path, JSON body or None); a claim never waits: a held call proves nothing here.
CALLS: list[tuple[str, str, Any]] = [
    *[("POST", "/scored_data", body) for body in (group(), group(4), RICH)],
    ("POST", "/scored_data_list", [group(), RICH]),
    ("POST", "/groups", [group(1), group(3, idempotency_key="k")]),
    ("POST", "/register", REGISTER),
    ("POST", "/register-env", ENV),
    ("POST", "/disconnect-env", {"env_id": 0}),
    ("GET", "/status-env", {"env_id": 0}),
    ("GET", "/status-env?env_id=0", None),
    ("POST", "/batches/claim", {"generation": 1, "claim_id": "c", "wait_s": 0}),
    ("POST", "/batches/1/ack", OWNER),
    ("POST", "/batches/1/extend", OWNER | {"lease_s": 5.0}),
    ("POST", "/batches/1/commit", {"generation": 1}),
    ("POST", "/batches/0/rewind", {"generation": 1}),
    ("GET", "/batches/1/shards/0?generation=1&epoch=1", None),
    ("POST", "/admission", {"env_id": 0, "sequences": 4, "ttl_s": 5.0, "admission_id": "l"}),
    ("POST", "/admission/release", {"admission_id": "l"}),
    ("POST", "/policy_version", {"version": 3}),
    ("POST", "/heartbeat", {"role": "env", "name": "n", "phase": "rollout"}),
    *[("GET", path, None) for path in ("/", "/batch", "/info", "/wandb_info", "/status")],
    *[("GET", path, None) for path in ("/latest_example", "/health", "/metrics", "/events")],
    ("GET", "/openapi.json", None),
    ("POST", "/reset_data", {}),
]
ODD: list[Any] = [
    *[None, True, "", "x" * 300, "\ud800", "\x00", [], {}, [[]], [None], {"a": {"b": []}}],
    *[-1, 0, 2**31, 2**31 - 1, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**40, -100],
    *[1e308, -1e308, 1e-320, -0.0, 0.1, float("nan"), float("inf"), "NaN", "-100"],
]
HEADERS: list[tuple[bytes, bytes]] = [
    *[(b"content-type", v) for v in (JSON, SAFETENSORS, GROUPS, b"", b"text/plain", b"\xff")],
    *[(b"content-encoding", v) for v in (b"gzip", b"zstd", b"br", b"identity", b"gzip, zstd")],
    *[(b"content-length", v) for v in (b"0", b"-1", b"99999999999", b"x", b"1e3")],
    *[(b"accept", v) for v in (b"*/*", GROUPS, JSON, b";q=", b"a/b;q=2")],
    *[(b"accept-encoding", v) for v in (b"gzip", b"zstd", b"*;q=0")],
    *[
        (b"authorization", v)
        for v in (b"Bearer ", b"Bearer \xff", b"Basic eA==", b"Bearer x y")
    ],
    *[(b"host", v) for v in (b"", b"evil.example", b"[::1", b"127.0.0.1:x")],
    *[(b"transfer-encoding", b"chunked"), (b"x-forwarded-for", b"1.2.3.4"), (b"cookie", b"a")],
    *[(b"if-none-match", b"*"), (b"range", b"bytes=0-1"), (b"expect", b"100-continue")],
]


@dataclass
class Known:
    """Values from earlier replies; without them every call is fenced."""

    generation: int = 1
    no: int = 1
    epoch: int = 1

    def learn(self, path: str, reply: bytes) -> None:
        try:
            told = json.loads(reply)
        except ValueError:
            return
        if path == "/register":
            self.generation = told["generation"]
        elif path == "/batches/claim" and told["batch_no"] is not None:
            self.no, self.epoch = told["batch_no"], told["epoch"]

    def in_path(self, path: str) -> str:
        named = path.replace("/1/", f"/{self.no}/").replace("epoch=1", f"epoch={self.epoch}")
        return named.replace("generation=1", f"generation={self.generation}")

    def in_body(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        mine = {"generation": self.generation, "epoch": self.epoch}
        return {key: mine.get(key, one) for key, one in value.items()}


def hostile(rng: random.Random, known: Known) -> Request:
    method, path, value = rng.choice(CALLS)
    while path == "/reset_data" and rng.random() < 0.9:  # seldom: all is gone after it
        method, path, value = rng.choice(CALLS)
    path, value = known.in_path(path), known.in_body(value)
    content_type = JSON
    if path in ("/scored_data", "/groups") and rng.random() < 0.3:
        body, content_type = binary_body(rng, many=path == "/groups")
    elif value is None:
        body = b"" if rng.random() < 0.9 else rng.randbytes(20)
    else:
        for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
            value = mutated(value, rng)
        body = json.dumps(value).encode()
    if rng.random() < 0.2:
        body = damaged(body, rng)
    headers = [(b"host", b"127.0.0.1"), (b"content-type", content_type)]
    body, encoding = encoded(body, rng)
    headers += encoding
    while rng.random() < 0.2:
        name, odd = rng.choice(HEADERS)
        if rng.random() < 0.5:
            headers = [(n, v) for n, v in headers if n != name]
        headers.append((name, odd))
    if rng.random() < 0.1:
        path = bent(path, rng)
    if rng.random() < 0.05:
        method = rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "X"])
    return Request(method, path, tuple(headers), body)


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy with one place replaced, removed, doubled, or filled with something odd."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        chance = rng.random()
        if chance < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if chance < 0.2:
            return value | {
                rng.choice([key.upper(), key + "\u00e9", "env_id"]): rng.choice(ODD)
            }
        return value | {key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        i = rng.randrange(len(value))
        chance = rng.random()
        if chance < 0.1:
            return value[:i] + value[i + 1 :]
        if chance < 0.2:
            return [*value[:i], value[i], *value[i:]]
        return [*value[:i], mutated(value[i], rng), *value[i + 1 :]]
    return rng.choice(ODD)


def binary_body(rng: random.Random, many: bool) -> tuple[bytes, bytes]:
    one = binary_group(rng.choice((1, 2, 4)))
    if rng.random() < 0.5:
        one = damaged(one, rng)
    if rng.random() < 0.5:
        one = zstandard.compress(one)
        if rng.random() < 0.3:
            one = damaged(one, rng)
    return (framed(one, one), GROUPS) if many else (one, SAFETENSORS)


def damaged(body: bytes, rng: random.Random) -> bytes:
    """Flip, cut, insert, repeat: at places chosen at random."""
    buffer = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(buffer) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(buffer):
            buffer[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del buffer[at:]
        elif kind == 2:
            buffer[at:at] = rng.randbytes(rng.choice((1, 8, 64)))
        elif kind == 3:
            token = [
                b"[",
                b"]",
                b"{",
                b'"',
                b",",
                b"1e999",
                b"NaN",
                b"\xff\xfe",
                b"null",
                b"-",
            ]
            buffer[at : at + 1] = rng.choice(token)
        else:
            buffer[at:at] = buffer[max(0, at - 16) : at]
    return bytes(buffer)


def encoded(body: bytes, rng: random.Random) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    chance = rng.random()
    if chance < 0.1:
        return gzip.compress(body, 1), [(b"content-encoding", b"gzip")]
    if chance < 0.15:
        return zstandard.compress(body), [(b"content-encoding", b"zstd")]
    if chance < 0.2:
        return damaged(gzip.compress(body, 1), rng), [(b"content-encoding", b"gzip")]
    return body, []


def bent(path: str, rng: random.Random) -> str:
    odd = ["%00", "%ff", "//", "..", "-1", "1e3", str(2**64), "x", "%2e%2e/", "\u0661", "0x1"]
    parts = path.split("/")
    parts[rng.randrange(len(parts))] = rng.choice(odd)
    query = [
        "",
        "?",
        "?env_id=-1",
        "?env_id=x",
        "?generation=%ff",
        f"?epoch={2**70}",
        "?a=1&a=2",
    ]
    return "/".join(parts) + rng.choice(query)
