"""GET /explore/why and /status: verdicts over the samples of this process, and their events."""

from __future__ import annotations

import pytest

from atroposlib.api.archive import indexer, token_balance
from atroposlib.api.archive.records import StepFact
from atroposlib.api.common.records import MAX_DELIVERIES
from atroposlib.api.run import judge, metrics, posts
from atroposlib.api.web.routes_groups import KEY_HEADER, RUN_ID_HEADER
from atroposlib.envs.rollout.filters import RejectReason
from atroposlib.envs.runtime.sender import GroupStats
from example_trainer.run.metrics_log import mismatch_details
from example_trainer.weights.agreement import Agreement
from tests.api.harness import ENV, Api, sampled
from tests.run_status.staged import EVALUATION

FAILING = {"role": "env", "name": "e-0a1b2c", "phase": "rollout", "waiting_on": None}


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "APART_S", 0.0)
    monkeypatch.setattr(token_balance, "WAIT_S", 600.0)
    made = Api(tmp_path, "sqlite")  # with an index of rollouts
    yield made
    await made.end()


def kinds(api):
    ring = api.service.events._ring
    return [(e.fields["key"], e.fields["change"]) for e in ring if e.kind == "finding"]


async def test_a_finding_appears_with_an_event_and_keeps_its_time(api):
    first = await api.get("/explore/why")
    again = await api.get("/explore/why")
    assert [one["key"] for one in first["findings"]] == ["no-trainer"]
    assert first["findings"][0]["at"] == again["findings"][0]["at"]
    assert first["state"] == "waiting"
    assert kinds(api) == [("no-trainer", "began")]


async def test_a_finding_that_ended_is_an_event(api):
    await api.get("/explore/why")
    await api.started()
    await api.post("/heartbeat", FAILING | {"details": {"failed_in_a_row": 4}})
    answer = await api.get("/explore/why")
    assert "rollouts-fail" in [one["key"] for one in answer["findings"]]
    assert ("no-trainer", "ended") in kinds(api)


async def test_the_answer_is_never_stored_by_a_browser_and_changes_nothing(api):
    before = await api.get("/status")
    reply = await api.http.get("/explore/why")
    assert reply.headers["cache-control"] == "no-store"
    after = await api.get("/status")
    assert {k: v for k, v in before.items() if k not in ("ages_s", "tokens")} == {
        k: v for k, v in after.items() if k not in ("ages_s", "tokens")
    }


async def beat(api, role, phase, waiting_on=None, servers=(), **details):
    body = {"role": role, "name": f"{role}-0a1b2c", "phase": phase, "details": details}
    await api.post("/heartbeat", {**body, "waiting_on": waiting_on, "servers": list(servers)})


async def send(api, env, sequences, mark=0, groups=1):
    more = {"inference_logprobs": [[1.0, -0.5]] * sequences, "env_id": env}
    for last in range(mark + 2, mark + 2 + groups):
        rows = {"tokens": [[1, last]] * sequences, "masks": [[-100, last]] * sequences}
        await api.post("/scored_data", {**rows, **more, "scores": [1.0] * sequences})


async def both_work(api):
    await beat(api, "trainer", "training")
    await beat(api, "env", "rollout")


async def joined(api, **trainer):
    """The generation of a trainer that waits for a batch, with one environment."""
    [env] = await api.started(commits=True, **trainer)
    return api.service.context.run_cache.view.generation, env


async def frozen_trainer(api):
    generation, env = await joined(api)
    await beat(api, "trainer", "waiting for batch")
    api.now += 30


async def frozen_in_step(api):
    generation, env = await joined(api)
    await send(api, env, 2, groups=2)
    await api.claim(generation)
    await beat(api, "trainer", "training")
    api.now += 30


async def frozen_environment(api):
    await joined(api)
    await beat(api, "env", "rollout")
    api.now += 30
    await beat(api, "trainer", "waiting for batch")


async def unmet_minimum(api):
    one = ENV | {"min_batch_allocation": 0.5}
    first, _ = await api.started(envs=(one, one | {"desired_name": "late"}))
    await send(api, first, 2, groups=2)
    await waits(api)


async def operator_pause(api):
    [env] = await api.started(envs=(ENV,))
    await send(api, env, 2, groups=2)
    await api.post("/steer", {"env": ENV["desired_name"], "state": "paused"})
    await waits(api)


async def impossible_minima(api):
    one = ENV | {"min_batch_allocation": 0.5, "group_size": 3}
    envs = await api.started(envs=(one, one | {"desired_name": "other"}))
    for env in envs:
        await send(api, env, 3, env)
    await waits(api)


async def too_large(api):
    env = (await api.started(batch_size=8, envs=(ENV | {"group_size": 6},)))[0]
    await send(api, env, 6)
    await api.claim(await api.registered(batch_size=4))
    await waits(api)


async def half_groups(api):
    env = (await api.started(envs=(ENV | {"group_size": 4},)))[0]
    await send(api, env, 3)
    await waits(api, seconds=90)


async def short_leases(api):
    generation, env = await joined(api)
    await send(api, env, 2, groups=2)
    for _ in range(5):
        await api.claim(generation, lease_s=5)
        api.now += 6
    await beat(api, "trainer", "training")


async def uncommitted(api):
    generation, env = await joined(api)
    await send(api, env, 2, groups=4)
    for _ in range(2):
        await api.trained(generation)
    api.service.store.max_bytes = (await api.get("/status"))["retained_bytes"]
    api.service.context.queue_stats.invalidate()
    await waits(api)


async def slow(api):
    await frozen_in_step(api)
    await beat(api, "env", "rollout")
    await beat(api, "trainer", "training", phase_s=200.0, phase_median_s=3.0)


async def unadmitted(api):
    await joined(api)
    await waits(api, "paused: not admitted", "a batch")


async def long_rollouts(api):
    await joined(api)
    server = {"url": "http://s:1/v1", "running": 3, "tokens_per_s": 40.0}
    await waits(api, seconds=90, oldest_rollout_s=88.0, servers=[server])


def dropped(reason, detail):
    """What an environment reports after eight groups that it did not send."""
    stats = GroupStats()
    for _ in range(8):
        stats.drop(reason, detail, "item")
    return f"a group worth keeping: {stats.mostly_dropped()}", stats.totals()


async def drops(api, reason, detail):
    await joined(api)
    waiting_on, totals = dropped(reason, detail)
    await waits(api, "rollout, most groups dropped", waiting_on, **totals)


async def equal_scores(api):
    await drops(api, RejectReason.SAME_SCORES, "all 0")


async def long_rows(api):
    await drops(api, RejectReason.TOO_LONG, "900 of 512 tokens")


async def half_dropped(api):
    env = await works(api)
    await send(api, env, 2)
    waiting_on, totals = dropped(RejectReason.TOO_LONG, "900 of 512 tokens")
    await beat(api, "env", "rollout, most groups dropped", waiting_on, **totals)


async def slow_trainer(api):
    generation, env = await joined(api)
    await send(api, env, 2, groups=4)
    await api.claim(generation)
    api.now += 90
    await beat(api, "trainer", "training", phase_s=90.0, phase_median_s=80.0)
    await beat(api, "env", "paused: queue full", "the trainer to take a batch")


async def waiting_for_an_evaluation(api):
    generation, env = await joined(api)
    await send(api, env, 2, groups=4)
    await api.trained(generation)
    api.now += 90
    await beat(api, "trainer", "evaluating", "the evaluation", **EVALUATION)
    await beat(api, "env", "paused: queue full", "the trainer to take a batch")


async def a_gap(api):
    """Groups of 6 and 4 make 14, and three of 6 with one of 4 do not: the queue is full."""
    envs = (ENV | {"group_size": 6}, ENV | {"group_size": 4, "desired_name": "four"})
    six, four = await api.started(batch_size=14, envs=envs)
    await send(api, six, 6, groups=3)
    await send(api, four, 4)
    await waits(api, "paused: queue full", "the trainer to take a batch")


async def deadly_batch(api):
    generation, env = await joined(api)
    await send(api, env, 2, groups=6)
    await api.trained(generation)
    for _ in range(MAX_DELIVERIES + 1):
        await api.claim(generation, lease_s=5)
        api.now += 6
    await api.trained(generation)
    await both_work(api)


async def old_groups(api):
    generation, env = await joined(api, max_staleness=1, staleness_policy="drop")
    for mark in range(8):
        await api.post("/scored_data", sampled(0, 2, mark, env_id=env))
    await api.post("/policy_version", {"version": 9})
    for mark in range(2):
        await api.post("/scored_data", sampled(9, 2, 20 + mark, env_id=env))
    await api.trained(generation)
    await both_work(api)


async def full_store(api):
    [env] = await api.started(batch_size=64)
    await send(api, env, 2)
    api.service.store.max_bytes = (await api.get("/status"))["retained_bytes"]
    api.service.context.queue_stats.invalidate()
    await waits(api)


async def old_weights(api):
    await joined(api)
    await api.post("/policy_version", {"version": 3})
    api.now += 90
    await beat(api, "trainer", "training")
    old = {"url": "http://s:1/v1", "running": 3, "version": 1}
    await beat(api, "env", "rollout", servers=[old], oldest_rollout_s=2.0)


async def other_logprobs(api):
    await joined(api)
    agreement = Agreement.of("float32", 0.2)
    found = mismatch_details({"logprob_mismatch_max": 0.4}, agreement)
    await beat(api, "trainer", "training", **found)
    await beat(api, "env", "rollout")


async def works(api):
    """A run that goes on, looked at once."""
    generation, env = await joined(api)
    await both_work(api)
    await api.get("/explore/why")
    return env


async def another_run(api):
    env = await works(api)
    for mark in range(2):
        old = {"headers": {RUN_ID_HEADER: "of-before"}}
        await api.post("/scored_data", sampled(0, 2, mark, env_id=env), **old)


async def lost_answers(api):
    env = await works(api)
    for _ in range(3):
        again = {"headers": {KEY_HEADER: "e/1"}}
        await api.post("/scored_data", sampled(0, env_id=env), **again)


async def slow_disk(api):
    now = iter(range(10**6))  # every call of the store takes a second of this clock
    for module in (metrics, posts):
        api.patch.setattr(module, "monotonic", lambda: float(next(now)))
    env = await works(api)
    await send(api, env, 2, groups=8)


async def another_clock(api):
    await joined(api)
    await beat(api, "trainer", "training", clock=api.now)
    await beat(api, "env", "rollout", clock=api.now - 600)


async def full_contexts(api):
    await works(api)
    await beat(api, "env", "rollout", samples_context_full=40, groups_sent=10)


async def late_index(api):
    env = await works(api)
    api.patch.setattr(indexer, "MAX_WAITING", 0)
    await send(api, env, 2)


async def unfit_record(api):
    await works(api)
    indexer_ = api.service.context.indexer
    indexer_.submit(StepFact("trainer", "t", 2**70, 0.0, {}))
    assert indexer_.flush(600.0)


async def failed_thread(api):
    await works(api)
    indexer_ = api.service.context.indexer
    api.patch.setattr(indexer, "FAILED_S", 0.0)
    with api.patch.context() as patch:
        patch.setattr(indexer_, "_sync", lambda: {}["a bug"])
        assert indexer_.flush(600.0)
    assert indexer_.failures and indexer_.flush(600.0)


async def reported(api, env, sequence, **tokens):
    """Counters of an environment, by end state."""
    counts = [
        {"version": 0, "state": state, "tokens": count, "samples": 1}
        for state, count in tokens.items()
    ]
    body = {"env_id": env, "instance": "e", "sequence": sequence, "counts": counts}
    await api.post("/account", body)


async def lost_rows(api):
    generation, env = await joined(api)
    await send(api, env, 2)
    assert api.service.context.indexer.flush(600.0)
    await reported(api, env, 1, posted=9)
    await waits(api)


async def more_drops(api):
    """Of 4 tokens a step 4 are trained for 16 steps, and then 4 of 12 for 8 steps."""
    generation, env = await joined(api)
    dropped = 0
    for step in range(1, 25):
        dropped += 8 * (step > 16)
        await send(api, env, 2, 2 * step, groups=2)
        await api.trained(generation)
        assert api.service.context.indexer.flush(600.0)
        await reported(
            api,
            env,
            step,
            **{"posted": 4 * step, "dropped/too_long": dropped, "evaluated": 99},
        )
        api.now += 10
        await both_work(api)
        await api.get("/status")


async def waits(api, phase="rollout", waiting_on=None, seconds=30, servers=(), **details):
    """A time in which trainer and environment wait."""
    api.now += seconds
    await beat(api, "trainer", "waiting for batch")
    running = 2 if phase == "rollout" else 0
    await beat(api, "env", phase, waiting_on, servers, rollouts_running=running, **details)


STALLS = {
    "trainer-silent": (frozen_trainer, "silent since 30 s, last phase 'waiting for batch'"),
    "trainer-silent-in-step": (frozen_in_step, "4 sequences, lease ends in "),
    "environment-silent": (frozen_environment, "env env: silent since 30 s"),
    "minimum-unmet": (unmet_minimum, "each batch needs 2 sequences of late"),
    "paused-by-operator": (operator_pause, "is paused by an operator"),
    "minima-impossible": (impossible_minima, "can never be met"),
    "group-too-large": (too_large, "larger than a batch of 4 sequences"),
    "partial-groups": (half_groups, "3 sequences"),
    "redelivered": (short_leases, "batch 1: delivery 5"),
    "never-committed": (uncommitted, "2 acked batches until POST /batches/N/commit"),
    "slow-step": (slow, "training for 200 s, median 3.0 s"),
    "not-admitted": (unadmitted, "waits for a batch"),
    "long-generations": (long_rollouts, "http://s:1/v1: 3 requests, 40 tokens/s"),
    "same-scores": (equal_scores, "8 of the last 8 groups dropped, same_scores: all 0"),
    "groups-dropped": (long_rows, "too_long: 900 of 512 tokens"),
    "trainer-bound": (slow_trainer, "4 sequences queued"),
    "trainer-evaluates": (
        waiting_for_an_evaluation,
        "version 20 of step 20 (dir), 34 s of at most",
    ),
    "full-without-batch": (a_gap, "waiting for groups that fill the gap"),
    "dead-batches": (deadly_batch, "1 batches, 2 groups dead"),
    "stale-drops": (old_groups, "8 of 10 groups were dropped as stale"),
    "store-full": (full_store, "by queued groups"),
    "versions-differ": (old_weights, "http://s:1/v1: version 1"),
    "mismatch": (other_logprobs, "0.4 nats in the last step, tolerance 0.2"),
    "foreign-posts": (another_run, "2 requests of another run (404)"),
    "repeated-posts": (lost_answers, "2 repeated and 1 new groups"),
    "slow-store": (slow_disk, "calls of the store took over 0.3 s"),
    "clocks-differ": (another_clock, "env-0a1b2c: +600 s"),
    "index-behind": (late_index, " records in "),
    "index-unfit": (unfit_record, "1 records since the API started"),
    "thread-failed": (failed_thread, "indexer: "),
    "mostly-dropped": (half_dropped, "8 of the last 8 groups dropped"),
    "tokens-unknown": (lost_rows, "7 tokens, with 2 under way"),
    "useful-share-halved": (
        more_drops,
        "33% in the last steps, 100% before 67% dropped/too_long",
    ),
    "context-full": (full_contexts, "40 rollouts, with 10 groups sent"),
}


@pytest.mark.parametrize("key", STALLS)
async def test_a_real_stall_is_the_first_finding(api, key, monkeypatch):
    stage, part = STALLS[key]
    api.patch = monkeypatch
    await stage(api)
    await api.get("/status")
    first = (await api.get("/explore/why"))["findings"][0]
    assert first["key"] == key
    assert part in " ".join(first["evidence"])


async def test_progress_between_the_looks_ends_the_finding(api):
    generation, env = await joined(api)
    await waits(api)
    for mark in range(4):
        await send(api, env, 2, mark)
        await api.get("/explore/why")
        await beat(api, "env", "rollout")
    await api.trained(generation)
    await beat(api, "trainer", "training")
    answer = await api.get("/explore/why")
    assert answer["findings"] == [] and answer["state"] == "healthy"
    assert answer["groups_per_s"] > 0
