"""``process`` and ``evaluate``: commands without a rollout API and a trainer.

``process`` runs up to ``max_num_workers`` rollouts at once, backlog items included, until
``total_steps`` groups are scored. The first item is a probe, rolled out alone; the second too,
if the first fails. It stops when ``max_failures_in_a_row`` items failed or lost their groups to
the filter. Items for which the environment returns no group are only reported. At the end, also
after an error, all groups made are in the file and on its HTML page.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from atroposlib.envs.rollout.causes import OnlyFailures, describe_error
from atroposlib.envs.rollout.pool import WorkerPool
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.evaluation import TRANSCRIPTS
from atroposlib.envs.runtime.registration import JoinedRun
from atroposlib.envs.runtime.waits import Shutdown, Waits
from atroposlib.errors import ConfigError, boundary

logger = logging.getLogger(__name__)
FIRST_REPORT = 64  # items in a row without a group; the next report follows at twice as many
CHANGE_TIMEOUT_S = 30.0  # longest wait for the end of a rollout or a send


async def run_process(runtime: EnvRuntime) -> int:
    """Make the groups and return how many were kept.

    Raises:
        OnlyFailures: a mistake failed the first items, ``max_failures_in_a_row`` items in a row
            failed or lost their groups, or the items ended before ``total_steps`` groups were
            made, by failures, without any group, or although the tasks repeat.
        StopRequested: SIGTERM or SIGINT; the groups made by then are kept.
    """
    wanted = runtime.n_groups_to_process
    if wanted <= 0:
        raise ConfigError(f"total_steps is the number of groups to make, not {wanted}")
    shutdown = Shutdown()
    shutdown.listen()
    runtime.metrics_logger.open_trackers(runtime.joined_run)
    try:
        with boundary(runtime.label(), None, "setup"):
            await shutdown.or_shutdown(runtime.env.setup())
        if runtime.teacher is not None:
            await shutdown.or_shutdown(runtime.teacher.prepare())
        runtime.joined_run.work_alone()
        await _make_groups(runtime, runtime.joined_run, wanted, shutdown)
    finally:
        runtime.pool.cancel_unfinished()
        await runtime.pool.drain(runtime.config.drain_timeout_s)
        await runtime.close()
        await _log_result(runtime, wanted)
    kept, last = runtime.pool.counts["kept"], runtime.pool.last_error
    if kept < wanted:
        reason = (
            f"the last error: {describe_error(last)}"
            if last
            else f"counts: {_counts(runtime)}"
        )
        short = (
            f"{kept} of {wanted} groups were made from {runtime.pool.started} items, and there "
            f"is no further item; {reason}"
        )
        if kept and last is None and not runtime.repeats_tasks:
            # As in the original: get_next_item of a class ends `process` by returning None.
            logger.warning("%s", short)
            return kept
        raise OnlyFailures(
            f"{short}\ngive the data set more tasks or --env.epochs, or lower --env.total_steps"
        )
    return kept


async def run_evaluate(runtime: EnvRuntime) -> None:
    """Set up, evaluate once and close; a failing evaluation fails the command."""
    runtime.joined_run.work_alone()
    try:
        with boundary(runtime.label(), None, "setup"):
            await runtime.env.setup()
        with boundary(runtime.label(), None, "evaluate"):
            await runtime.env.evaluate()
        folder = runtime.config.data_dir_to_save_evals
        if folder is None:
            logger.info("--env.data_dir_to_save_evals DIR keeps the replies, as a page too")
        elif (path := Path(folder) / TRANSCRIPTS).exists():
            await _write_page(runtime, path)
    finally:
        await runtime.close()


async def _make_groups(
    runtime: EnvRuntime, run: JoinedRun, wanted: int, shutdown: Shutdown
) -> None:
    pool, waits = runtime.pool, Waits(runtime.label())
    logged, empty = 0, FIRST_REPORT
    while pool.counts["kept"] < wanted:
        await _start_rollouts(runtime, wanted, shutdown)
        if not pool.busy:
            break
        await shutdown.or_shutdown(pool.wait_for_change(CHANGE_TIMEOUT_S))
        if pool.fatal is not None:
            raise pool.fatal
        if pool.counts["kept"] > logged:
            logged = pool.counts["kept"]
            run.reach(logged)
            waits.clear("groups")
            with boundary(runtime.label(), f"group {logged}", "wandb_log"):
                await runtime.env.wandb_log({})
        else:
            so_far = f"{logged} of {wanted}, {pool.busy} rollouts under way"
            waits.start("groups", f"the next kept group: {so_far}", usual=True)
        _stop_if_only_failing(runtime, pool)
        if pool.consecutive_empty_items < FIRST_REPORT:
            empty = FIRST_REPORT
        elif pool.consecutive_empty_items >= empty:
            empty *= 2
            logger.warning(
                "%d items in a row gave no group (%s): it goes on with further items",
                pool.consecutive_empty_items,
                _counts(runtime),
            )
        await runtime.pause_while_failing(waits, shutdown)


async def _start_rollouts(runtime: EnvRuntime, wanted: int, shutdown: Shutdown) -> None:
    """Start the missing rollouts; at most ``max_num_workers``, also if some end meanwhile."""
    pool = runtime.pool
    room = min(runtime.max_num_workers if pool.probe.over else 1, wanted - pool.counts["kept"])
    for _ in range(room - pool.busy):
        # A probe needs a new item, not the failed item again.
        waiting = pool.next_waiting() if pool.probe.over else None
        job = waiting or await shutdown.or_shutdown(runtime.new_job()) or pool.next_waiting()
        if job is None:
            return
        pool.start(job)


def _stop_if_only_failing(runtime: EnvRuntime, pool: WorkerPool) -> None:
    if pool.consecutive_lost_items < runtime.config.max_failures_in_a_row:
        return
    gone = pool.servers_gone_since
    if gone is not None and time.monotonic() - gone < runtime.config.api_timeout_s:
        return  # a server is absent: waiting may help, new items would not
    message = (
        f"{pool.consecutive_lost_items} items in a row gave no group ({_counts(runtime)})"
    )
    last = f"\nthe last error: {describe_error(pool.last_error)}" if pool.last_error else ""
    raise OnlyFailures(message + last) from pool.last_error


def _counts(runtime: EnvRuntime) -> str:
    counts = {**runtime.pool.counts, **runtime.group_stats.totals()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


async def _log_result(runtime: EnvRuntime, wanted: int) -> None:
    kept = runtime.pool.counts["kept"]
    if not kept:
        return  # the error that ends the command has the reason
    where = f" in {Path(runtime.group_file.path)}" if runtime.group_file else ""
    logger.info("%d of %d groups%s; %s", kept, wanted, where, _counts(runtime))
    if allowed := ", ".join(f"{n} {why}" for why, n in runtime.group_stats.allowed.items()):
        rules = "--env.ensure_scores_are_not_same, --env.max_token_length"
        logger.info("`serve` would drop %s of these (%s)", allowed, rules)
    if runtime.group_file is not None:
        await _write_page(runtime, runtime.group_file.path)


async def _write_page(runtime: EnvRuntime, path: Path) -> None:
    from atroposlib.frontend.jsonl2html import generate_html

    page = await asyncio.to_thread(generate_html, str(path), None, runtime.loaded_tokenizer())
    logger.info("see %s", page)
