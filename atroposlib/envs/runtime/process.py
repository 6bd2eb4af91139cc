"""``process``: make ``total_steps`` scored groups without an API or a trainer.

Rollouts run side by side up to ``max_num_workers``; backlog items are rolled out too. A
run that only fails stops and says why instead of trying for ever. However it ends, what
was made is in the file, and the page beside the file shows it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from atroposlib.envs.rollout.pool import Job, WorkerPool
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.metrics_logger import open_wandb
from atroposlib.envs.runtime.shutdown import Stopping
from atroposlib.envs.runtime.wait_status import Waiting
from atroposlib.envs.settings.config import FAILING_BACKOFF
from atroposlib.errors import AtroposError, ConfigError, boundary

logger = logging.getLogger(__name__)
CHANGE_S = 30.0  # longest that nobody looks whether something changed


class OnlyFailures(AtroposError):
    """Too many items in a row gave no group that could be kept; the message says why."""


async def run_process(env: EnvRuntime) -> int:
    """Make the groups and return how many were kept.

    Raises:
        OnlyFailures: ``max_failures_in_a_row`` items gave no kept group.
        StopRequested: SIGTERM or SIGINT; what was made by then is kept.
    """
    wanted = env.n_groups_to_process
    if wanted <= 0:
        raise ConfigError(f"total_steps is the number of groups to make, not {wanted}")
    stopping = Stopping()
    stopping.listen()
    if env.config.use_wandb and (
        sink := open_wandb(env.label(), None, None, env.config.model_dump(mode="json"))
    ):
        env.logbook.sinks.append(sink)
    try:
        with boundary(env.label(), None, "setup"):
            await stopping.unless_asked(env.setup())
        env.max_token_len = env.config.max_token_length
        await _make_groups(env, wanted, stopping)
    finally:
        env.pool.cancel_unfinished()
        await env.pool.drain(env.config.drain_timeout_s)
        await env.close()
        await _say_what_was_made(env, wanted)
    return env.pool.counts["kept"]


async def _make_groups(env: EnvRuntime, wanted: int, stopping: Stopping) -> None:
    pool, waiting = env.pool, Waiting(env.label())
    logged = 0
    while pool.counts["kept"] < wanted:
        await _start_rollouts(env, wanted, stopping)
        if not pool.busy:
            break
        await stopping.unless_asked(pool.wait_for_change(CHANGE_S))
        if pool.fatal is not None:
            raise pool.fatal
        if pool.counts["kept"] > logged:
            logged = env.curr_step = pool.counts["kept"]
            waiting.over()
            with boundary(env.label(), f"group {logged}", "wandb_log"):
                await env.wandb_log({})
        else:
            so_far = f"{logged} of {wanted}, {pool.busy} rollouts under way"
            waiting.waits(f"the next kept group: {so_far}", usual=True)
        _stop_if_only_failing(env, pool)
        errors = pool.errors_in_a_row
        pause = FAILING_BACKOFF.pause_s(errors - env.max_num_workers)
        if pause:
            waiting.waits(f"{errors} rollouts failed in a row, next in {pause:.1f} s")
            await stopping.pause(pause)


async def _start_rollouts(env: EnvRuntime, wanted: int, stopping: Stopping) -> None:
    pool = env.pool
    while pool.busy < min(env.max_num_workers, wanted - pool.counts["kept"]):
        job = pool.next_waiting() or await stopping.unless_asked(_next_job(env))
        if job is None:
            return
        pool.start(job)


async def _next_job(env: EnvRuntime) -> Job | None:
    with boundary(env.label(), None, "get_next_item"):
        item = await env.get_next_item()
    return None if item is None else Job(item)


def _stop_if_only_failing(env: EnvRuntime, pool: WorkerPool) -> None:
    if pool.barren_in_a_row < env.config.max_failures_in_a_row:
        return
    gone = pool.servers_gone_since
    if gone is not None and time.monotonic() - gone < env.config.api_timeout_s:
        return  # a server is away: other items would not help, and waiting may
    reasons = {**pool.counts, **env.tally.totals()}
    message = f"{pool.barren_in_a_row} items in a row gave no group ({reasons})"
    raise OnlyFailures(f"{message}; the last error: {pool.last_error}") from pool.last_error


async def _say_what_was_made(env: EnvRuntime, wanted: int) -> None:
    kept = env.pool.counts["kept"]
    where = f" in {Path(env.group_file.path)}" if env.group_file else ""
    counts = {**env.pool.counts, **env.tally.totals()}
    logger.info("%d of %d groups%s; %s", kept, wanted, where, counts)
    if kept < wanted:
        logger.warning("fewer groups than asked for: %d of %d", kept, wanted)
    if env.group_file is not None and kept:
        from atroposlib.frontend.jsonl2html import generate_html

        path = str(env.group_file.path)
        logger.info("see %s", await asyncio.to_thread(generate_html, path))
