"""CPU of an environment with and without its journal, per group of 16 x 4,096 tokens.

    python benchmarks/bench_journal.py [--rounds 12] [--tokens 4096]

The same groups are sampled from a server in another process, collected, filtered and packed for the
post, in turns with and without the journal. CPU counts all threads of this process, so also the
thread that writes; the server's is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.journal.journal_opening import pack_groups
from atroposlib.envs.journal.journal_owner import SUFFIX
from atroposlib.envs.rollout.filters import AcceptedGroup, FilterRules, filter_group
from atroposlib.envs.rollout.groups import from_node
from atroposlib.testing.serving import serve_in_thread
from atroposlib.testing.tiny import char_tokenizer

GROUP = 16
LIMIT_BYTES = 10**9


class LongAnswers(BaseEnv):
    """Samples of a server, scored at random."""

    name = "long"

    async def get_next_item(self) -> dict[str, Any]:
        return {"id": "item"}

    async def collect_trajectory(self, item: Any) -> Any:
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": item["id"]}],
                max_tokens=10**5,
                temperature=1.0,
            )
            (node,) = managed.nodes_for(completion)
        return from_node(node, float(id(node) % 97)), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        return None


def serve_answers(tokens: int, url: Connection) -> None:
    """Serve the same answer of so many tokens, made once, until this process is ended."""
    ids = char_tokenizer().encode("a" * (tokens - 1) + "<|end|>", add_special_tokens=False)
    generated = {
        "token_ids": [ids],
        "finish_reasons": ["stop"],
        "logprobs": [[[{str(token): -0.5}] for token in ids]],
        "weight_versions": [[{"version": 0, "start": 0, "end": len(ids)}]],
    }
    models = {"object": "list", "data": [{"id": "fake", "object": "model"}]}
    replies = {"/generate": generated, "/v1/models": models, "/health": {}}
    bodies = {path: json.dumps(reply).encode() for path, reply in replies.items()}

    async def answer(request: Request) -> Response:
        if request.method == "POST" and not await request.json():
            return Response(b"{}", 422)  # asked whether the route is there
        body = bodies.get(request.url.path)
        return Response(body or b"{}", 200 if body else 404, media_type="application/json")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    with serve_in_thread(app) as root:
        url.send(root)
        url.poll(None)


@contextmanager
def server(tokens: int) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_answers, args=(tokens, theirs), daemon=True
    )
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


async def cpu_of_group(env: LongAnswers, number: int, with_journal: bool) -> float:
    """CPU seconds of a group, from its first request to its packed form."""
    runtime = env._atropos
    name, item = f"rollout-{number}-{with_journal}", {"id": f"{number}"}
    begun = time.process_time()
    if with_journal:
        runtime.journal.begin(name, item)
    runtime.journal.enter(name, None)
    group, _ = await env.collect_trajectories(item)
    accepted = filter_group(group, FilterRules(GROUP, ensure_scores_are_not_same=False))
    assert isinstance(accepted, AcceptedGroup), accepted
    if with_journal:
        await runtime.journal.before_post(lambda: pack_groups([accepted], 0))
    pack_groups([accepted], 0)
    if with_journal:
        assert runtime.journal.file is not None
        runtime.journal.end(name)
        await asyncio.to_thread(runtime.journal.file.synchronise().wait)
    return time.process_time() - begun


async def measure(rounds: int, tokens: int, folder: Path) -> None:
    with server(tokens) as url:
        config = BaseEnvConfig(group_size=GROUP, use_wandb=False, max_token_length=2 * tokens)
        config.tokenizer_name = "characters"
        servers = [
            APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="fake")
        ]
        env = LongAnswers(config, servers)
        env.tokenizer = char_tokenizer()
        env._atropos.journal.start(folder, "run", LIMIT_BYTES)
        await cpu_of_group(env, -1, True)  # routes of the server, imports
        cpu_s: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            for with_journal in (False, True):
                cpu_s[with_journal].append(await cpu_of_group(env, number, with_journal))
        size = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
        env._atropos.journal.close(delete=True)
        await env._atropos.close()
    without, with_ = (min(cpu_s[key]) for key in (False, True))
    print(f"{rounds} groups of {GROUP} x {tokens} tokens, least CPU per group:")
    print(f"  without the journal  {1000 * without:8.1f} ms")
    print(f"  with the journal     {1000 * with_:8.1f} ms  x{with_ / without:.3f}")
    print(f"  the journal's file   {size / (rounds + 1) / 2**20:8.1f} MiB per group")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(measure(options.rounds, options.tokens, Path(place)))
