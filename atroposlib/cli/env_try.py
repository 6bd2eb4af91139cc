"""atropos env try FILE -n 3: print a few rollouts, or the first error with its line.

    atropos env try wordle.py -n 3                       # a server at http://localhost:9001/v1
    atropos env try wordle.py --model MODEL_DIR --url http://127.0.0.1:8001/v1
    atropos env try wordle.py --watch                    # again at each change of the file
    atropos env try wordle.py --replay runs/a:17         # no model: stored replies, new rewards

Function environments roll out a task each, classes a group of n. Further words are flags of
the environment, e.g. --env.max_tokens 64. RUN:17 replays group 17, RUN:ITEM the groups of an item,
RUN the newest groups of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.cli import env_files
from atroposlib.cli.trial.conversations import Conversations
from atroposlib.cli.trial.page import TrialPage
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.text.messages import turns
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser, whole
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
    parser.add_argument(
        "--watch", action="store_true", help="again at each change of the file"
    )
    about = "score stored replies again: group, item, or the newest groups"
    parser.add_argument("--replay", metavar="RUN[:GROUP|:ITEM]", help=about)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="the rollouts as a page, too"
    )
    about = "of models that are not the policy (%(default)s)"
    parser.add_argument(
        "--max-judge-calls", type=whole(0), default=100, metavar="N", help=about
    )
    options, words = parser.parse_known_args(argv)
    if options.n < 1:
        parser.error("-n is at least 1")
    options = parser.with_log_settings(options, "warning")
    logs.configure(PROG, options.log_format, options.log_level)
    if options.html and options.replay:
        parser.error("--html shows sampled rollouts: `atropos view RUN` shows stored ones")
    if options.watch:
        return watch_file(options.environment, sys.argv[1:] if argv is None else argv)
    return trial(options, words)


def watch_file(environment: str, argv: Sequence[str]) -> int:
    """Run the same words without ``--watch`` at each change of the environment's file.

    Raises ConfigError: the environment is no file.
    """
    from atroposlib.cli.trial.watch import run_at_each_change

    path = Path(environment.partition(":")[0])
    if not path.is_file():
        raise ConfigError(f"--watch looks at a file, and {environment} is none")
    words = [word for word in argv if word != "--watch"]
    start = "import sys; from atroposlib.cli.env_try import main; sys.exit(main(sys.argv[1:]))"
    return run_at_each_change([sys.executable, "-c", start, *words], path)


def trial(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Try the environment; returns the exit status."""
    from atroposlib.validation.judges import (
        JudgeCalls,
        JudgeCallsSpent,
        judge_counter,
        policy_addresses,
    )

    calls, page = JudgeCalls(options.max_judge_calls), TrialPage(options.html)
    try:
        if options.replay:
            from atroposlib.cli.trial.replay import replay

            with judge_counter(calls):
                env_cls = env_files.load(options.environment)
                replay(env_cls, words, options.replay, options.n, calls)
        else:
            env = environment_to_try(options, words)
            calls.leave_out(lambda: policy_addresses(env))
            with judge_counter(calls):
                asyncio.run(try_out(env, options.n, page))
    except (AtroposError, JudgeCallsSpent) as error:
        from atroposlib.envs.rollout.causes import describe_error

        logging.getLogger(__name__).debug("where it failed", exc_info=True)
        text = describe_error(error) if isinstance(error, AtroposError) else str(error)
        logs.report("error", text)
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        if calls.count:
            print(f"calls of other models: {calls.addresses()}")
    page.write()
    return 0


def environment_to_try(options: argparse.Namespace, words: Sequence[str]) -> Any:
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


async def try_out(env: Any, n: int, page: TrialPage) -> None:
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
            return await try_group(env, page)
        for number in range(1, n + 1):
            item = await next_item(env)
            heard = Conversations()
            env.rollouts.listen(heard.hear)
            rollout = await env.rollouts.train(item)
            scored += rollout.reward.score is not None
            title = f"rollout {number} of {n}, task {logs.printable(str(item['id']))}"
            print(f"{title}: {score_text(rollout.reward)}")
            print_agents(env, item["id"], rollout, heard, page)
        if not scored:
            raise returned_none(env.definition.function, n)
    finally:
        await runtime_of(env).close()


def score_text(reward: Any) -> str:
    """The score and its named parts: ``reward 1 (exact 1, short 0.5)``."""
    parts = ", ".join(f"{k} {v:.4g}" for k, v in reward.metrics.items())
    score = "no score (None)" if reward.score is None else f"reward {reward.score:.4g}"
    return score + (f" ({parts})" if parts else "")


def print_agents(
    env: Any, item: str, rollout: Any, heard: Conversations, page: TrialPage
) -> None:
    """Print the turns and rows of the model, then of each endpoint of the rollout."""
    about = {"env": env.name, "item": item, "rewards": rollout.reward.metrics}
    for place, row in enumerate(rollout.rows, 1):
        if len(rollout.rows) > 1:
            print_block("row", f"{place} of {len(rollout.rows)}")
        messages = row.get("messages") or heard.messages("")
        print_messages(messages)
        print_tokens(env, row)
        page.add(env.tokenizer, row, messages, rollout.reward.score, about)
    for name in dict.fromkeys([*heard.calls, *rollout.seats]):
        if not name:
            continue
        seat = rollout.seats.get(name)
        trained = "not trained" if seat is None else f"reward {seat.score:.4g}"
        print_block("agent", f"{name}, {trained}, {len(heard.calls.get(name, ()))} turns")
        messages = heard.messages(name)
        print_messages(messages)
        if seat is None:
            print()
        for row in seat.rows if seat is not None else ():
            print_tokens(env, row)
            page.add(
                env.tokenizer, row, messages, seat.score, {**about, "item": f"{item}/{name}"}
            )


async def try_group(env: Any, page: TrialPage) -> None:
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
            text = [{"role": "text", "content": env.tokenizer.decode(row["tokens"])}]
            messages = row.get("messages") or text
            print_messages(messages)
            print_tokens(env, row)
            page.add(env.tokenizer, row, messages, score, {"env": env.name, "item": name})


async def next_item(env: Any) -> Any:
    from atroposlib.envs.runtime.env_runtime import runtime_of

    with boundary(runtime_of(env).label(), None, "get_next_item"):
        item = await env.get_next_item()
    if item is None:
        raise ConfigError(
            f"{runtime_of(env).label()}: get_next_item returned None: there is no item"
        )
    return item


def print_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Print messages, calls of tools and their results."""
    for message in messages:
        for label, content in turns(message):
            print_block(label, content if isinstance(content, str) else repr(content))


def print_tokens(env: Any, row: Mapping[str, Any]) -> None:
    """Print the size of a row, its logprobs and the versions of its policy."""
    sampled = [i for i, label in enumerate(row["masks"]) if label != MASKED]
    line = f"{len(row['tokens'])}, {len(sampled)} of them sampled"
    if row.get("inference_logprobs") and sampled:
        logprobs = [row["inference_logprobs"][i] for i in sampled]
        line += f", mean logprob {statistics.fmean(logprobs):.3f}"
    if row.get("versions") and sampled:
        versions = {row["versions"][i] for i in sampled}
        first, last = min(versions), max(versions)
        line += (
            f", policy version {last}" if first == last else f", versions {first} to {last}"
        )
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
