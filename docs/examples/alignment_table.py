"""Show one real group, token by token: what was sampled, what is trained, by which weights.

    python docs/examples/alignment_table.py --model DIR > table.md

Starts the local inference server on DIR and holds a conversation of two turns. Between the
turns the weights are published again under a new version, as a trainer would; so the second
answer of each row carries another version than the first.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.rollout.filters import to_wire
from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.generation import ServerManager
from atroposlib.wire import MASKED, ScoredData
from atroposlib.wire.columns import from_group

READY_WITHIN_S = 300.0
SAMPLES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--rows", type=int, default=SAMPLES, help="sequences to show")
    arguments = parser.parse_args()
    url = f"http://127.0.0.1:{free_port()}"
    with subprocess.Popen(server_command(arguments.model, url), stdout=sys.stderr) as server:
        try:
            wait_ready(url, server)
            group, tokenizer = asyncio.run(sample_group(url, arguments.model))
        finally:
            server.terminate()
    from_group(group)  # checks it
    for row in range(arguments.rows):
        print(f"\n### Row {row}\n\n{table(group, row, tokenizer)}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_command(model: Path, url: str) -> list[str]:
    port = url.rsplit(":", 1)[1]
    serve = [sys.executable, "-m", "atroposlib.inference", "--model", str(model)]
    return [*serve, "--port", port, "--seed", "0"]


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    bound = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < bound and server.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit(f"the inference server did not answer within {READY_WITHIN_S:g} s")


async def sample_group(url: str, model: Path) -> tuple[ScoredData, Any]:
    """Two turns by version 0 and version 1; every row one conversation."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    server = APIServerConfig(
        base_url=f"{url}/v1", model_name=str(model), server_type="vllm", api_key="none"
    )
    manager = ServerManager([server])
    nodes = []
    for item in range(SAMPLES):
        async with manager.managed_server(tokenizer=tokenizer) as managed:
            messages = [{"role": "user", "content": "What is 2 + 5?"}]
            first = await managed.chat_completion(messages=messages, max_tokens=6)
            if item == 0:
                await publish_again(url, model, version=1)
            messages += [
                {"role": "assistant", "content": first.choices[0].message.content or ""},
                {"role": "user", "content": "And 3 + 1?"},
            ]
            second = await managed.chat_completion(messages=messages, max_tokens=6)
            nodes.append(managed.nodes_for(second)[0])
    await manager.close()
    scores = [0.0] * SAMPLES  # not the point here
    return to_wire(from_nodes(nodes, scores)), tokenizer


async def publish_again(url: str, model: Path, version: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        for path, body in (
            ("/pause?mode=wait", None),
            (
                "/update_weights_from_disk",
                {"model_path": str(model), "weight_version": version},
            ),
            ("/resume", None),
        ):
            (await http.post(path, json=body)).raise_for_status()


def table(group: ScoredData, row: int, tokenizer: Any) -> str:
    """One line per token of ``row``, as Markdown."""
    assert group.inference_logprobs is not None and group.versions is not None
    lines = [
        "| position | token | text | mask | logprob | version |",
        "|---:|---:|---|---:|---:|---:|",
    ]
    columns = zip(
        group.tokens[row],
        group.masks[row],
        group.inference_logprobs[row],
        group.versions[row],
        strict=True,
    )
    for position, (token, mask, logprob, version) in enumerate(columns):
        text = repr(tokenizer.decode([token])).replace("|", "\\|")
        trained = f"**{mask}**" if mask != MASKED else str(mask)
        lines.append(
            f"| {position} | {token} | `{text}` | {trained} | {logprob:.4f} | {version} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
