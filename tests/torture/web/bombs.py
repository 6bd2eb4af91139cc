"""Small requests that unfold into much: refused, with little memory spent on them."""

from __future__ import annotations

import gzip
import io
import json
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import zstandard

from tests.torture.figures import MB, Figures, fast_folder
from tests.torture.kills.api_process import LOST, ApiProcess, Caller
from tests.torture.web.hostile import GROUPS, JSON, SAFETENSORS, framed, group

GIB = 2**30
DEPTH = 100_000
MAY_TAKE = 64 * MB
CHUNK = b" " * MB


def gzip_bomb(start: bytes = b"") -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as out:
        out.write(start)
        for _ in range(GIB // MB):
            out.write(CHUNK)
    return packed.getvalue()


def zstd_bomb(start: bytes = b"", told: bool = False) -> bytes:
    """``told``: the frame header contains the decompressed size."""
    packed = io.BytesIO()
    size = len(start) + GIB if told else -1
    with zstandard.ZstdCompressor().stream_writer(packed, size=size, closefd=False) as out:
        out.write(start)
        for _ in range(GIB // MB):
            out.write(CHUNK)
    return packed.getvalue()


def safetensors_with(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def many_tensors() -> bytes:
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    return safetensors_with(json.dumps({f"t{i}": one for i in range(100_000)}).encode())


def nested(key: str) -> bytes:
    return json.dumps(group())[:-1].encode() + b', "%s": ' % key.encode() + b"[" * DEPTH


def wide(key: str, one: bytes = b"{}") -> bytes:
    many = b"[" + (one + b",") * 10**6 + one + b"]"
    return json.dumps(group())[:-1].encode() + b', "%s": ' % key.encode() + many + b"}"


def closed(key: str) -> bytes:
    return nested(key) + b"]" * DEPTH + b"}"


Bomb = tuple[str, bytes, dict[str, str]]


def bombs() -> list[tuple[str, Callable[[], Bomb]]]:
    """Each with its name; made when it is thrown, so that only one is in memory."""
    text, tensors, frames = JSON.decode(), SAFETENSORS.decode(), GROUPS.decode()
    start = json.dumps(group())[:-1].encode()

    def post(path: str, body: bytes, kind: str, encoding: str | None = None) -> Bomb:
        headers = {"content-type": kind}
        return path, body, headers | ({"content-encoding": encoding} if encoding else {})

    return [
        ("gzip", lambda: post("/scored_data", gzip_bomb(), text, "gzip")),
        ("gzip in JSON", lambda: post("/scored_data", gzip_bomb(start), text, "gzip")),
        ("gzip of tensors", lambda: post("/groups", gzip_bomb(), tensors, "gzip")),
        ("zstd", lambda: post("/scored_data", zstd_bomb(), text, "zstd")),
        ("zstd, told", lambda: post("/groups", zstd_bomb(told=True), text, "zstd")),
        (
            "zstd of tensors",
            lambda: post("/scored_data", zstd_bomb(safetensors_with(b"{}")), tensors, "zstd"),
        ),
        ("zstd frame", lambda: post("/groups", framed(zstd_bomb(told=True)), frames)),
        ("frame of 2^63", lambda: post("/groups", struct.pack("<Q", 2**63) + b"x", frames)),
        ("nesting", lambda: post("/scored_data", b"[" * DEPTH, text)),
        ("nested messages", lambda: post("/scored_data", closed("messages"), text)),
        ("nested metadata", lambda: post("/groups", closed("metadata"), text)),
        ("nested nothing", lambda: post("/scored_data_list", nested("x"), text)),
        ("nested register", lambda: post("/register", closed("x"), text)),
        ("a million groups", lambda: post("/groups", b"[" + b"{}," * 10**6 + b"{}]", text)),
        ("a million messages", lambda: post("/scored_data", wide("messages"), text)),
        ("a million lists", lambda: post("/scored_data", wide("tokens", b"[]"), text)),
        (
            "lists in gzip",
            lambda: post("/groups", gzip.compress(wide("x", b"[]"), 1), text, "gzip"),
        ),
        ("a long number", lambda: post("/scored_data", b"9" * 8 * MB, text)),
        ("header of 2^62", lambda: post("/groups", safetensors_with(b"{}", 2**62), tensors)),
        ("many tensors", lambda: post("/groups", many_tensors(), tensors)),
        (
            "nested header",
            lambda: post("/groups", safetensors_with(b'{"a":' * DEPTH), tensors),
        ),
        (
            "large header",
            lambda: post(
                "/groups", safetensors_with(b'{"__metadata__":{"a":"' + b"x" * 8 * MB), tensors
            ),
        ),
    ]


def peak_rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def throw(port: int, bomb: Bomb) -> int:
    path, body, headers = bomb
    caller = Caller(port)
    try:
        return caller.send("POST", path, body, headers)[0]
    except LOST:
        return 0  # hung up on, which is a refusal too
    finally:
        caller.close()


def ten_thousand_headers(port: int) -> int:
    head = b"GET /status HTTP/1.1\r\nhost: localhost\r\n"
    lines = b"".join(b"x-%d: y\r\n" % i for i in range(10_000))
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        try:
            connection.sendall(head + lines + b"\r\n")
            answer = connection.recv(64)
        except OSError:
            return 0
    return int(answer.split()[1]) if answer else 0


def bomb_campaign() -> Figures:
    """Raises AssertionError if one is let in, costs too much, or ends the API."""
    with fast_folder() as folder:
        api = ApiProcess(folder)
        api.start()
        try:
            return _campaign(api)
        finally:
            api.kill()


def _call(api: ApiProcess, method: str, path: str, body: Any = None) -> Any:
    # A connection per call: the API closes one that is idle while the bombs are thrown.
    with closing(Caller(api.port)) as caller:
        status, reply = caller.call(method, path, body)
    assert status == 200, reply
    return reply


def _campaign(api: ApiProcess) -> Figures:
    worst, refused = 0, 0
    costs: list[str] = []
    registration = {
        **{"wandb_group": "", "wandb_project": "", "batch_size": 8, "max_token_len": 64},
        **{"checkpoint_dir": "", "save_checkpoint_interval": 1, "starting_step": 0},
        "num_steps": 9,
    }
    _call(api, "POST", "/register", registration)
    _call(api, "POST", "/scored_data", group())
    for name, make in bombs():
        bomb = make()
        forget_peak(api.pid)
        before = peak_rss(api.pid)
        status = throw(api.port, bomb)
        took = peak_rss(api.pid) - before - len(bomb[1])  # the body itself has to be read
        assert status == 0 or 400 <= status < 500, f"{name}: {status}"
        costs.append(f"{name} {took / MB:.0f} MB")
        worst, refused = max(worst, took), refused + 1
    assert worst < MAY_TAKE, ", ".join(costs)
    forget_peak(api.pid)
    before = peak_rss(api.pid)
    assert ten_thousand_headers(api.port) in (0, 200, 400, 431)
    worst = max(worst, peak_rss(api.pid) - before)
    assert _call(api, "GET", "/status")["queued_sequences"] == 2
    return Figures({"bombs": refused + 1, "let in": 0, "MB at most": worst / MB})
