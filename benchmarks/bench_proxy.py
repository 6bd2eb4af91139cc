"""Milliseconds that the managed-server proxy adds to a call of an agent, in one run.

    python benchmarks/bench_proxy.py --sessions 40 --turns 8

Every turn of every conversation is requested twice: from the chat route of an instant server,
then from the proxy, which renders, tokenizes, finds the sequence that the turn extends,
requests tokens from the same server and records the tokens. Server and proxy are separate
processes. The tokenizer has one token per character, so a row is longer than in real life.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from apibench.servers import Kind, Server
from atroposlib.testing.tiny import char_tokenizer

ANSWER = "thank you, that is what i wanted to know."
QUESTION = "please go on with the part that comes next, and say why. "


def main() -> None:
    options = parse_args()
    if options.serve_instant:
        serve_instant(options.serve_instant)
        return
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(measure(options, Path(scratch)))


# --- the instant server --------------------------------------------------------------------


def serve_instant(port: int) -> None:
    import uvicorn

    tokens = char_tokenizer().encode(ANSWER + "<|end|>", add_special_tokens=False)
    generated = {
        "token_ids": [tokens],
        "finish_reasons": ["stop"],
        "logprobs": [[[{str(t): -0.5}] for t in tokens]],
        "weight_versions": [[{"version": 0, "start": 0, "end": len(tokens)}]],
    }
    message = {"role": "assistant", "content": ANSWER}
    chat = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    chat["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
    answers = {"/generate": generated, "/v1/chat/completions": chat, "/health": {}}
    bodies = {path: json.dumps(answer).encode() for path, answer in answers.items()}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        status = 200 if scope["path"] in bodies else 404
        if status == 200 and body and not json.loads(body):
            status = 422  # an empty body asks whether the route exists
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": bodies.get(scope["path"], b"{}")})

    uvicorn.run(app, port=port, log_level="error", lifespan="off")


# --- what is measured ----------------------------------------------------------------------


async def measure(options: argparse.Namespace, scratch: Path) -> None:
    instant_kind = Kind("instant", (__file__, "--serve-instant", "{port}"), health="/health")
    with Server(instant_kind) as instant_server:
        words = ("-m", "atroposlib.generation.proxy.main", "--port", "{port}")
        config = ("--config", str(configure(scratch, instant_server.port)))
        with Server(Kind("proxy", (*words, *config), health="/health")) as proxy:
            async with client_of(instant_server) as instant, client_of(proxy) as agent:
                for context in options.context:
                    await talk(instant, agent, context, sessions=2, turns=options.turns)
                    cpu = proxy.usage().cpu_s  # earlier sessions are the warm-up
                    pairs = await talk(
                        instant, agent, context, options.sessions, options.turns
                    )
                    report(context, pairs, (proxy.usage().cpu_s - cpu) / len(pairs))
    print(f"load {', '.join(f'{value:.1f}' for value in os.getloadavg())}")


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60)


async def talk(
    instant: httpx.AsyncClient,
    agent: httpx.AsyncClient,
    context: int,
    sessions: int,
    turns: int,
) -> list[tuple[float, float]]:
    """(direct, through the proxy) seconds of each turn."""
    pairs = []
    for _ in range(sessions):
        opened = (await agent.post("/sessions/create", json={})).raise_for_status().json()
        path = f"/{opened['uuid']}/v1/chat/completions"
        messages = [{"role": "user", "content": (QUESTION * context)[:context]}]
        for _ in range(turns):
            body = {"model": "m", "messages": messages, "max_tokens": 64}
            direct = await time_calls(instant, "/v1/chat/completions", body)
            pairs.append((direct, await time_calls(agent, path, body)))
            messages.append({"role": "assistant", "content": ANSWER})
            messages.append({"role": "user", "content": QUESTION})
        await agent.delete(f"/{opened['uuid']}")
    return pairs


async def time_calls(client: httpx.AsyncClient, path: str, body: Any) -> float:
    started = time.perf_counter()
    (await client.post(path, json=body)).raise_for_status()
    return time.perf_counter() - started


def report(context: int, pairs: list[tuple[float, float]], cpu_s: float) -> None:
    sides = list(zip(*pairs))
    added = [through - direct for direct, through in pairs]
    columns = {"direct": sides[0], "proxy": sides[1], "added": added}
    print(f"first message of {context} tokens, {len(pairs)} calls each")
    table = {name: percentiles(values) for name, values in columns.items()}
    for name, (p50, p95) in table.items():
        print(f"  {name:8} p50 {p50:7.2f} ms   p95 {p95:7.2f} ms")
    ratios = [table["proxy"][i] / table["direct"][i] for i in range(2)]
    print(f"  {'ratio':8} p50 {ratios[0]:7.2f}      p95 {ratios[1]:7.2f}")
    print(f"  proxy process: {1e3 * cpu_s:.2f} CPU ms per call")


def percentiles(values: Any) -> tuple[float, float]:
    """p50 and p95, in milliseconds."""
    twentieths = statistics.quantiles(values, n=20)
    return 1e3 * statistics.median(values), 1e3 * twentieths[-1]


def configure(scratch: Path, port: int) -> Path:
    char_tokenizer().save_pretrained(scratch / "tokenizer")
    path = scratch / "servers.json"
    server = {"base_url": f"http://127.0.0.1:{port}/v1", "server_type": "vllm"}
    names = {"model_name": "m", "tokenizer_name": str(scratch / "tokenizer")}
    path.write_text(json.dumps({**names, "servers": [server]}))
    return path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--sessions", type=int, default=20)
    add("--turns", type=int, default=8, help="of each session")
    add("--context", type=int, nargs="*", default=[200, 4000], help="tokens to begin with")
    add("--serve-instant", type=int, metavar="PORT", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
