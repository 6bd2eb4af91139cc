"""atropos env try FILE -n 3: print a few rollouts, or the first error with its line.

    atropos env try wordle.py -n 3                       # a server at http://localhost:9001/v1
    atropos env try wordle.py --model MODEL_DIR --url http://127.0.0.1:8001/v1

Function environments roll out a task each, classes a group of n. Further words are flags of
the environment, e.g. --env.max_tokens 64.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.cli import env_files
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.text.messages import turns
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser
from atroposlib.utils.tokenizers.loading import local_model
from atroposlib.wire import MASKED

PROG = "atropos env try"


def main(argv: Sequence[str] | None = None) -> int:
    """Print ``n`` rollouts; exit status 1 at the first failure, 2 for settings."""
    parser = CommandParser(prog=PROG, description=__doc__)
    parser.add_argument("environment", metavar="ENVIRONMENT", help=env_files.USAGE)
    parser.add_argument("-n", type=int, default=3, metavar="N", help="rollouts (%(default)s)")
    parser.add_argument("--url", help="inference server (--openai.base_url)")
    parser.add_argument("--model", type=local_model, help="model, tokenizer [those it serves]")
    options, words = parser.parse_known_args(argv)
    if options.n < 1:
        parser.error("-n is at least 1")
    options = parser.with_log_settings(options, "warning")
    logs.configure(PROG, options.log_format, options.log_level)
    try:
        asyncio.run(try_out(environment_to_try(options, words), options.n))
    except AtroposError as error:
        from atroposlib.envs.rollout.causes import describe_error

        logging.getLogger(__name__).debug("where it failed", exc_info=True)
        logs.report("error", describe_error(error))
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def environment_to_try(options: argparse.Namespace, words: Sequence[str]) -> Any:
    """The environment with its settings."""
    from atroposlib.envs.cli import read_settings
    from atroposlib.envs.runtime.creation import make_named_env

    env_cls = env_files.load(options.environment)
    flags = ["process", "--env.use_wandb", "false", "--env.group_size", str(options.n)]
    if options.url:
        flags += ["--openai.base_url", options.url]
    if options.model:
        flags += ["--openai.model_name", options.model, "--env.tokenizer_name", options.model]
    settings = read_settings(env_cls, [*flags, *words])
    return make_named_env(env_cls, settings, must_answer=True)


async def try_out(env: Any, n: int) -> None:
    """Roll out and print. Raises AtroposError: the first failure; nothing is tried again."""
    from atroposlib.envs.function_env.env import FunctionEnv
    from atroposlib.envs.rollout.causes import returned_none
    from atroposlib.envs.runtime.env_runtime import runtime_of

    scored = 0
    try:
        with boundary(runtime_of(env).label(), None, "setup"):
            await env.setup()
        runtime_of(env).joined_run.work_alone()
        if not isinstance(env, FunctionEnv):
            return await try_group(env)
        for number in range(1, n + 1):
            item = await next_item(env)
            rollout = await env.rollouts.train(item)
            value = rollout.reward.score
            scored += value is not None
            parts = ", ".join(f"{k} {v:.4g}" for k, v in rollout.reward.metrics.items())
            score = "no score (None)" if value is None else f"reward {value:.4g}"
            score += f" ({parts})" if parts else ""
            print(f"rollout {number} of {n}, task {item['id']}: {score}")
            for place, row in enumerate(rollout.rows, 1):
                if len(rollout.rows) > 1:
                    print_block("row", f"{place} of {len(rollout.rows)}")
                print_row(env, row)
        if not scored:
            raise returned_none(env.definition.function, n)
    finally:
        await runtime_of(env).close()


async def try_group(env: Any) -> None:
    """Roll out an item of a class; its samples are a group."""
    from atroposlib.envs.rollout.groups import groups_in
    from atroposlib.envs.runtime.env_runtime import runtime_of

    item = await next_item(env)
    name = item.get("id", "") if isinstance(item, Mapping) else ""
    with boundary(runtime_of(env).label(), name, "collect_trajectories"):
        collected, _ = await env.collect_trajectories(item)
        groups = groups_in(await env.postprocess_histories(collected))
    if not groups:
        print(f"item {name}: no group")
    for group in groups:
        for g, score in enumerate(group["scores"]):
            names = ("tokens", "masks", "messages", "inference_logprobs", "versions")
            row = {key: group[key][g] for key in names if group.get(key)}
            title = f"rollout {g + 1} of {len(group['scores'])}, item {name}"
            print(f"{title}: reward {score:.4g}")
            print_row(env, row)


async def next_item(env: Any) -> Any:
    from atroposlib.envs.runtime.env_runtime import runtime_of

    with boundary(runtime_of(env).label(), None, "get_next_item"):
        item = await env.get_next_item()
    if item is None:
        raise ConfigError(
            f"{runtime_of(env).label()}: get_next_item returned None: there is no item"
        )
    return item


def print_row(env: Any, row: Mapping[str, Any]) -> None:
    """Print a trained row: its messages, tools and tokens."""
    if not row.get("messages"):
        print_block("text", env.tokenizer.decode(row["tokens"]))
    for message in row.get("messages") or ():
        for label, content in turns(message):
            print_block(label, content if isinstance(content, str) else repr(content))
    sampled = [i for i, label in enumerate(row["masks"]) if label != MASKED]
    line = f"{len(row['tokens'])}, {len(sampled)} of them sampled"
    if row.get("inference_logprobs") and sampled:
        logprobs = [row["inference_logprobs"][i] for i in sampled]
        line += f", mean logprob {sum(logprobs) / len(logprobs):.3f}"
    if row.get("versions") and sampled:
        line += f", policy version {max(row['versions'][i] for i in sampled)}"
    if len(row["tokens"]) > env.config.max_token_length:
        limit = f"--env.max_token_length {env.config.max_token_length}"
        line += (
            f"\nmore than {limit}: dropped by `serve`, unless the trainer takes longer rows"
        )
    print_block("tokens", f"{line}\n")


def print_block(label: str, text: str) -> None:
    """Print text with its label; control characters never reach the terminal."""
    for i, line in enumerate(text.split("\n")):
        print(f"  {'' if i else label:<10} {logs.printable(line)}".rstrip())
