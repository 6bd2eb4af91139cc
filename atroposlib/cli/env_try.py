"""atropos env try FILE -n 3: print a few rollouts, or the first error with its line.

    atropos env try wordle.py -n 3                       # a server at http://localhost:9001/v1
    atropos env try wordle.py --model MODEL_DIR --url http://127.0.0.1:8001/v1

Function environments roll out one task each, classes one group of n. Further words are flags of
the environment, such as --env.max_tokens 64.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atroposlib.cli import env_files
from atroposlib.errors import AtroposError, ConfigError, boundary

CONNECT_TIMEOUT_S = 3.0
LABEL_WIDTH = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Print ``n`` rollouts; exit status 1 at the first failure, 2 for settings."""
    parser = argparse.ArgumentParser(
        prog="atropos env try",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("environment", help=env_files.USAGE)
    parser.add_argument("-n", type=int, default=3, metavar="N", help="rollouts (%(default)s)")
    parser.add_argument("--url", help="inference server (--openai.base_url)")
    parser.add_argument("--model", help="its model, and the tokenizer's directory or name")
    options, words = parser.parse_known_args(argv)
    if options.n < 1:
        parser.error("-n is at least 1")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        env = made(options, words)
        asyncio.run(try_out(env, options.n))
    except AtroposError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def made(options: argparse.Namespace, words: Sequence[str]) -> Any:
    """The environment with its settings."""
    from atroposlib.envs import cli

    env_cls = env_files.load(options.environment)
    given = ["process", "--env.use_wandb", "false", "--env.group_size", str(options.n)]
    if options.url:
        given += ["--openai.base_url", options.url]
    if options.model:
        given += ["--openai.model_name", options.model, "--env.tokenizer_name", options.model]
    return cli.make_env(env_cls, cli.read_settings(env_cls, [*given, *words]))


async def try_out(env: Any, n: int) -> None:
    """Roll out and print.

    Raises:
        AtroposError: the first failure; nothing is tried again.
    """
    from atroposlib.envs.function_env.env import FunctionEnv

    for server in env.server.servers:
        await require_server(server.config.base_url or "")
    try:
        with boundary(env.label(), None, "setup"):
            await env.setup()
        env.joined_run.work_alone()
        if isinstance(env, FunctionEnv):
            for number in range(1, n + 1):
                item = await next_item(env)
                rollout = await env.rollouts.train(item)
                title = f"rollout {number} of {n}, task {item['id']}"
                if rollout is None:
                    print(f"{title}: no score (None), it would be drawn again\n")
                    continue
                metrics = rollout.reward.metrics
                score = f"reward {rollout.reward.score:.4g}{parts(metrics)}"
                for row in rollout.rows:
                    show(env, title, score, row)
        else:
            await try_group(env)
    finally:
        await env.close()


async def try_group(env: Any) -> None:
    """Roll out one item of a class; its samples are one group."""
    from atroposlib.envs.rollout.groups import groups_in

    item = await next_item(env)
    name = item.get("id", "") if isinstance(item, Mapping) else ""
    with boundary(env.label(), name, "collect_trajectories"):
        collected, _ = await env.collect_trajectories(item)
        groups = groups_in(await env.postprocess_histories(collected))
    if not groups:
        print(f"item {name}: no group")
    for group in groups:
        for g, score in enumerate(group["scores"]):
            names = ("tokens", "masks", "messages", "inference_logprobs", "versions")
            columns = {key: group.get(key) for key in names}
            row = {key: value and value[g] for key, value in columns.items()}
            title = f"rollout {g + 1} of {len(group['scores'])}, item {name}"
            show(env, title, f"reward {score:.4g}", row)


async def next_item(env: Any) -> Any:
    with boundary(env.label(), None, "get_next_item"):
        item = await env.get_next_item()
    if item is None:
        raise ConfigError(f"{env.label()}: get_next_item returned None: there is no item")
    return item


async def require_server(url: str) -> None:
    """Require that a port answers, so that no rollout waits for it.

    Raises:
        ConfigError: it does not.
    """
    from urllib.parse import urlsplit

    split = urlsplit(url)
    if split.hostname is None:
        return
    port = split.port or (443 if split.scheme == "https" else 80)
    try:
        opening = asyncio.open_connection(split.hostname, port)
        _, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        writer.close()
    except (OSError, asyncio.TimeoutError) as error:
        raise ConfigError(
            f"no inference server at {url}: start `atropos infer --model MODEL_DIR --port "
            f"{port}`, or name another by --url"
        ) from error


# --- what is printed ---


def show(env: Any, title: str, score: str, row: Mapping[str, Any]) -> None:
    """One trained row: its messages, tools and tokens."""
    print(f"{title}: {score}")
    messages = row.get("messages")
    if messages:
        for message in messages:
            for label, text in turns(message):
                print_block(label, text)
    else:
        print_block("text", env.tokenizer.decode(row["tokens"]))
    sampled = [i for i, label in enumerate(row["masks"]) if label != -100]
    line = f"{len(row['tokens'])}, {len(sampled)} of them sampled"
    if row.get("inference_logprobs") and sampled:
        logprobs = [row["inference_logprobs"][i] for i in sampled]
        line += f", mean logprob {sum(logprobs) / len(logprobs):.3f}"
    if row.get("versions") and sampled:
        line += f", policy version {max(row['versions'][i] for i in sampled)}"
    print_block("tokens", line)
    print()


def parts(metrics: Mapping[str, float]) -> str:
    named = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    return f" ({named})" if named else ""


def turns(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and text of a message and of each tool call in it."""
    content = message.get("content")
    calls = message.get("tool_calls") or []
    if content or not calls:
        yield str(message.get("role")), content if isinstance(content, str) else repr(content)
    for call in calls:
        function = call.get("function", {})
        yield "tool call", f"{function.get('name')}({function.get('arguments')})"


def print_block(label: str, text: str) -> None:
    """Text with its label; control characters are shown, not sent to the terminal."""
    for i, line in enumerate(text.split("\n")):
        clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        print(f"  {'' if i else label:<{LABEL_WIDTH}} {clean}")
