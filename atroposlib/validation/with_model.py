"""The two checks that need a model: whether its rewards carry a signal, and fit into its tokens."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from atroposlib.envs.cli import read_settings
from atroposlib.envs.function_env.card import card_of
from atroposlib.envs.function_env.env import FunctionEnv
from atroposlib.envs.function_env.rollouts import EvalSample, Result
from atroposlib.envs.rollout.pool import Outcome, run_rollout
from atroposlib.envs.runtime.creation import make_named_env
from atroposlib.envs.runtime.env_runtime import runtime_of
from atroposlib.envs.runtime.evaluation import ROW
from atroposlib.validation.bounds import bound_of
from atroposlib.validation.judges import JudgeCalls, policy_addresses
from atroposlib.validation.report import CheckResult, Proof, Verdict

GROUPS, GROUP = 8, 4
LEAST_VARIED = 0.2  # share of groups whose scores differ


async def measure_samples(
    env_cls: Any, words: Sequence[str], url: str, calls: JudgeCalls
) -> list[CheckResult]:
    """Findings of a few groups of the model at ``url``; ``calls`` are the calls of further models.

    Raises AtroposError: the server does not answer, or every rollout failed.
    """
    arguments = ["process", "--env.use_wandb", "false", "--openai.base_url", url, *words]
    settings = read_settings(env_cls, arguments)
    config: Any = settings.env
    if issubclass(env_cls, FunctionEnv):
        sampled = config.model_copy(update={"eval_temperature": config.temperature})
    else:
        sampled = config.model_copy(update={"group_size": min(GROUP, config.group_size)})
    settings = replace(settings, env=sampled)
    env: Any = await asyncio.to_thread(make_named_env, env_cls, settings, must_answer=True)
    calls.leave_out(partial(policy_addresses, env))
    try:
        await env.setup()
        items = [item for _ in range(GROUPS) if (item := await env.get_next_item())]
        if issubclass(env_cls, FunctionEnv):
            draws = [env.rollouts.evaluate(item) for item in items for _ in range(GROUP)]
            samples = await asyncio.gather(*draws)
        else:
            outcomes = await asyncio.gather(
                *(run_rollout(runtime_of(env), item) for item in items)
            )
            samples = rows_of(outcomes)
    finally:
        await runtime_of(env).close()
    card = card_of(env_cls)
    floor, best = (card.floor, card.best) if card else (0.0, 1.0)
    least = bound_of("signal", card).value or 0.0
    most = bound_of("tokens", card).value or 0.0
    return [
        signal(samples, floor, best, least),
        tokens(samples, env.config.max_token_length, most),
    ]


def rows_of(outcomes: Sequence[Outcome]) -> list[EvalSample]:
    """The rows of groups of a class as samples. Raises AtroposError: every rollout failed."""
    errors = [sample.error for sample in outcomes if sample.error is not None]
    if errors and len(errors) == len(outcomes):
        raise errors[-1]
    return [
        EvalSample(
            {"id": f"{i}", "task": None, "place": i, "epoch": 0},
            Result.SCORED,
            {"reward": float(score)},
            {"finish_reason": reason, ROW: {"tokens": tokens}},
        )
        for i, outcome in enumerate(outcomes)
        for group in outcome.groups
        for score, tokens, reason in zip(
            group["scores"],
            group["tokens"],
            group.get("finish_reasons") or [None] * len(group["scores"]),
        )
    ]


def signal(
    samples: Sequence[EvalSample], floor: float, best: float, least: float
) -> CheckResult:
    """Mean within ``least`` of neither end, and groups whose scores differ."""
    groups: dict[str, list[float]] = {}
    for sample in samples:
        if sample.result is Result.SCORED:
            groups.setdefault(sample.item["id"], []).append(sample.numbers["reward"])
    if not groups:
        return CheckResult("signal", Verdict.WARN, "no rollout has a score")
    mean = statistics.fmean(score for scores in groups.values() for score in scores)
    varied = sum(len(set(scores)) > 1 for scores in groups.values()) / len(groups)
    share = (mean - floor) / (best - floor)
    good = least <= share <= 1 - least and varied >= LEAST_VARIED
    text = f"mean {mean:.3g}, scores differ in {varied:.0%} of {len(groups)} groups"
    return CheckResult("signal", Verdict.PASS if good else Verdict.WARN, text)


def tokens(samples: Sequence[EvalSample], limit: int, most: float) -> CheckResult:
    """Rows fit into ``max_token_length``, and few replies are cut."""
    lengths = {
        sample.item["id"]: len((sample.shown.get(ROW) or {}).get("tokens") or ())
        for sample in samples
    }
    cut = [sample for sample in samples if sample.shown.get("finish_reason") == "length"]
    long = [Proof(task, note=f"{n} tokens") for task, n in lengths.items() if n > limit]
    share = len(cut) / max(1, len(samples))
    text = f"at most {max(lengths.values(), default=0)} of {limit} tokens, {share:.0%} cut"
    if share > most:
        long += [Proof(sample.item["id"], note="the reply is cut") for sample in cut]
    return CheckResult("tokens", Verdict.WARN if long else Verdict.PASS, text, long)
