"""``process``: make ``total_steps`` scored groups without an API or a trainer.

Rollouts run side by side up to ``max_num_workers``; backlog items are rolled out too. A
run that only fails stops and says why instead of trying for ever.
"""

from __future__ import annotations

import logging
from pathlib import Path

from atroposlib.envs.logbook import open_wandb
from atroposlib.envs.runtime import EnvRuntime
from atroposlib.envs.workers import Job, WorkerPool
from atroposlib.errors import AtroposError, ConfigError, boundary

logger = logging.getLogger(__name__)


class OnlyFailures(AtroposError):
    """Too many items in a row gave no group that could be kept; the message says why."""


async def run_process(env: EnvRuntime) -> int:
    """Make the groups and return how many were kept.

    Raises:
        OnlyFailures: ``max_failures_in_a_row`` items gave no kept group.
    """
    wanted = env.n_groups_to_process
    if wanted <= 0:
        raise ConfigError(f"total_steps is the number of groups to make, not {wanted}")
    if env.config.use_wandb and (
        sink := open_wandb(env.label(), None, None, env.config.model_dump(mode="json"))
    ):
        env.logbook.sinks.append(sink)
    with boundary(env.label(), None, "setup"):
        await env.setup()
    env.max_token_len = env.config.max_token_length
    try:
        await _make_groups(env, wanted)
    finally:
        env.pool.cancel_unfinished()
        await env.pool.drain(env.config.drain_timeout)
        await env.close()
    kept = env.pool.counts["kept"]
    _say_what_was_made(env, kept, wanted)
    if env.group_file is not None and kept:
        from atroposlib.frontend.jsonl2html import generate_html

        logger.info("see %s", generate_html(str(env.group_file.path)))
    return kept


async def _make_groups(env: EnvRuntime, wanted: int) -> None:
    pool = env.pool
    more_items = True
    logged = 0
    while pool.counts["kept"] < wanted:
        while more_items and pool.busy < min(
            env.max_num_workers, wanted - pool.counts["kept"]
        ):
            job = pool.next_waiting() or await _next_job(env)
            if job is None:
                more_items = False
            else:
                pool.start(job)
        if not pool.busy:
            break
        await pool.wait_for_change(60.0)
        if pool.fatal is not None:
            raise pool.fatal
        if pool.counts["kept"] > logged:
            logged = env.curr_step = pool.counts["kept"]
            with boundary(env.label(), f"group {logged}", "wandb_log"):
                await env.wandb_log({})
        _stop_if_only_failing(env, pool)
        more_items = more_items or bool(pool.retries or pool.backlog)


async def _next_job(env: EnvRuntime) -> Job | None:
    with boundary(env.label(), None, "get_next_item"):
        item = await env.get_next_item()
    return None if item is None else Job(item)


def _stop_if_only_failing(env: EnvRuntime, pool: WorkerPool) -> None:
    if pool.barren_in_a_row < env.config.max_failures_in_a_row:
        return
    reasons = {**pool.counts, **env.tally.totals()}
    message = f"{pool.barren_in_a_row} items in a row gave no group ({reasons})"
    raise OnlyFailures(f"{message}; the last error: {pool.last_error}") from pool.last_error


def _say_what_was_made(env: EnvRuntime, kept: int, wanted: int) -> None:
    where = f" in {Path(env.group_file.path)}" if env.group_file else ""
    logger.info("%d of %d groups%s; %s", kept, wanted, where, dict(env.pool.counts))
    if kept < wanted:
        logger.warning("the environment ran out of items after %d groups", kept)
