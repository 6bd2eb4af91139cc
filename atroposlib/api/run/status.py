"""What /status and /status-env say. Looks at the store only when something has changed."""

from __future__ import annotations

from atroposlib.api.common.records import EnvEntry, GroupState, StateTotals, StoreStats
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.allocation import env_status
from atroposlib.api.decisions.run_state import RunState
from atroposlib.api.run.context import Core
from atroposlib.api.run.queue_stats import sequences_in
from atroposlib.wire import EnvShare, EnvStatus, RunStatus

MOST_SHARES = 256  # environments that /status lists: it is read by people and scraped often
_NOTHING = StateTotals()


async def current_step(core: Core) -> int:
    """Starting step plus the batches that this trainer generation was handed."""
    trainer = core.run.trainer
    if trainer is None:
        return 0
    return trainer.starting_step + (await core.holdings.look()).delivered


async def status_of_env(core: Core, entry: EnvEntry) -> EnvStatus:
    """What one environment needs to pace itself.

    Raises:
        NotRegistered: no trainer has registered.
    """
    trainer = core.run.registration
    stats = await core.holdings.look()
    supply = core.holdings.supply(stats, core.live(), trainer.batch_size)
    step = trainer.starting_step + stats.delivered
    answer = env_status(entry, supply, step, core.run.policy_version)
    answer.max_staleness = trainer.max_staleness
    if stats.batches_open > 1:
        answer.batches_open = stats.batches_open
    return answer


async def status_of_run(core: Core) -> RunStatus:
    """Everything there is to say about the run."""
    stats = await core.holdings.look()
    run = core.run
    sequences = sequences_in(stats)
    ends = stats.totals
    return RunStatus(
        current_step=await current_step(core),
        queue_size=sum(group_count.groups for group_count in stats.group_counts),
        state=run.state.value,
        run_id=run.run_id,
        policy_version=run.policy_version,
        queued_sequences=sequences[GroupState.PENDING],
        leased_sequences=sequences[GroupState.LEASED],
        buffered_sequences=sequences[GroupState.BUFFERED],
        batches_acked=stats.batches_acked,
        blocked_reason=await blocked_reason(core),
        participants=core.presence.participants(),
        batches_open=stats.batches_open,
        batches_dead=stats.batches_dead,
        dropped_groups=ends.get(GroupState.DROPPED, _NOTHING).groups,
        dead_groups=ends.get(GroupState.DEAD, _NOTHING).groups,
        retained_bytes=stats.retained_bytes,
        max_bytes=core.store.max_bytes,
        staleness=core.metrics.staleness(),
        shares=shares(core, stats),
    )


async def blocked_reason(core: Core) -> str | None:
    """Why the next claim would get no batch; None if it would get one."""
    run = core.run
    if run.trainer is None:
        return "no trainer has registered: waiting for POST /register"
    if run.state is not RunState.STARTED:
        return "waiting for the trainer to ask for its first batch"
    return await core.holdings.blocked_reason(run.trainer.batch_size, core.live())


def shares(core: Core, stats: StoreStats) -> list[EnvShare]:
    """Asked and realised shares of the trained tokens, by environment."""
    run, live = core.run, core.live()
    weights: dict[int | None, float] = {env.env_id: env.weight for env in live}
    realised = fair_share.realised_shares(fair_share.decode(stats.fair_share))
    if None in realised or any(group_count.env is None for group_count in stats.group_counts):
        weights[None] = fair_share.DEFAULT_WEIGHT
    asked = fair_share.target_shares(weights) if weights else {}
    shown = sorted(asked.keys() | realised.keys(), key=lambda env: -1 if env is None else env)
    return [
        EnvShare(
            env_id=env,
            name="" if env is None else run.envs[env].wandb_name,
            weight=fair_share.DEFAULT_WEIGHT if env is None else run.envs[env].weight,
            asked=asked.get(env, 0.0),
            realised=realised.get(env, 0.0),
            connected=env in asked,
        )
        for env in shown[:MOST_SHARES]
        if env is None or env < len(run.envs)
    ]
