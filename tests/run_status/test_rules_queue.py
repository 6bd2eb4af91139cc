"""Rules about batches, store, weights and requests: each on its stall and on a healthy run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from atroposlib.api.decisions.blocked import no_batch
from atroposlib.run_status import rules_queue as rules
from atroposlib.run_status.diagnosis import diagnose
from atroposlib.run_status.evidence import CounterValue, Rule
from tests.run_status.staged import HEALTHY, env, moving, server, still, trainer, with_counters

WAITING = trainer("waiting for batch")
HERE = (WAITING, env(), server())
NAMES = {0: "sums_0", 1: "code_1"}
SHARE = {"name": "sums_0", "buffered": 3, "asked": 1.0, "realised": 1.0}
HELD = "the store is full, 990 of 1000 bytes"

HALVED = {
    "useful_recent": 0.3,
    "useful_usual": 0.6,
    "recent_losses": {"dropped/too_long": 0.5, "masked": 0.2},
}


def reason(counts, size, needs=None):
    """The text of the API itself."""
    return no_batch(Counter(counts), size, needs or {}, NAMES)


def count(name, value, **labels):
    return CounterValue(name, labels, value)


STALLS = {
    "minimum-unmet": (
        still(
            WAITING,
            env(),
            env(name="code-aaaaaa") | {"age_s": 30.0},
            blocked_reason=reason({(0, 4): 4}, 8, {1: 4}),
        ),
        "code: rollout (30 s ago)",
    ),
    "minima-impossible": (
        still(*HERE, blocked_reason=reason({(0, 8): 1, (1, 8): 1}, 8, {0: 4, 1: 4})),
        "can never be met",
    ),
    "sizes-do-not-divide": (
        still(*HERE, blocked_reason=reason({(0, 3): 4}, 8)),
        "the next batch size that works: 9",
    ),
    "group-too-large": (
        still(*HERE, blocked_reason=reason({(0, 16): 2}, 8)),
        "sums_0 (env 0) 16",
    ),
    "paused-by-operator": (
        still(*HERE, shares=[SHARE | {"name": "a, b; is", "state": "paused"}]),
        "a, b; is is paused by an operator",
    ),
    "partial-groups": (
        still(*HERE, buffered_sequences=3, shares=[SHARE]),
        "sums_0: 3 sequences",
    ),
    "redelivered": (
        still(
            *HERE,
            open_batches=[{"no": 4, "sequences": 8, "deliveries": 5, "lease_s": 1.0}],
        ),
        "batch 4: delivery 5",
    ),
    "dead-batches": (moving(*HERE, batches_dead=1, dead_groups=4), "4 groups dead"),
    "stale-drops": (
        with_counters(
            moving(
                ages_s={"dropped": 20.0},
                staleness={"in_flight": {"mean": 4.0}, "in_queue": {"mean": 1.0}},
            ),
            [],
            [count("groups_stale_total", 40.0)],
        ),
        "shorter rollouts",
    ),
    "never-committed": (
        still(
            *HERE,
            blocked_reason=f"{HELD} (900 by 3 acked batches until POST /batches/N/commit)",
            retained_bytes=990,
            max_bytes=1000,
        ),
        "acked batches until",
    ),
    "store-full": (
        still(
            *HERE,
            blocked_reason=f"{HELD} (990 by queued groups)",
            retained_bytes=990,
            max_bytes=1000,
        ),
        "by queued groups",
    ),
    "versions-differ": (
        moving(trainer(), env(), server(version=2), ages_s={"policy_version": 90.0}),
        "version 2",
    ),
    "mismatch": (
        moving(trainer(mismatch=0.4, mismatch_bound=0.2), env(), server()),
        "0.4 nats",
    ),
    "foreign-posts": (
        with_counters(
            HEALTHY, [], [count("http_requests_total", 9.0, status="404", method="POST")]
        ),
        "9 requests of another run (404)",
    ),
    "repeated-posts": (
        with_counters(HEALTHY, [], [count("groups_duplicate_total", 5.0)]),
        "5 repeated and 10 new groups in 2 s",
    ),
    "index-behind": (moving(*HERE, index_skipped=7, before={"index_skipped": 3}), "4 records"),
    "index-unfit": (moving(*HERE, index_unfit=2), "2 records"),
    "thread-failed": (moving(*HERE, thread_failures={"indexer": 3}), "indexer: 3 times"),
    "tokens-unknown": (
        still(*HERE, tokens={"unknown": 120, "moving": 40, "age_s": 2.0}),
        "120 tokens, with 40 under way",
    ),
    "useful-share-halved": (
        moving(tokens=HALVED),
        "30% in the last steps, 60% before\n50% dropped/too_long, 20% masked",
    ),
    "slow-store": (
        with_counters(
            HEALTHY,
            [],
            [count("store_seconds_count", 20.0), count("store_seconds_bucket", 9.0, le="0.3")],
        ),
        "11 of 20 calls",
    ),
}
RULES = {one.key: one for one in vars(rules).values() if isinstance(one, Rule)}


@pytest.mark.parametrize("key", STALLS)
def test_a_stall_is_named_first(key):
    evidence, part = STALLS[key]
    first = diagnose(evidence)[0]
    assert first.key == key
    assert part in "\n".join([*first.evidence, first.remedy])


def test_every_rule_of_the_module_has_a_staged_stall():
    assert STALLS.keys() == RULES.keys()


@pytest.mark.parametrize("key", RULES)
def test_a_healthy_run_has_no_finding(key):
    assert RULES[key](HEALTHY) is None


@pytest.mark.parametrize(
    ("sizes", "least", "works"), [([3], 8, 9), ([3, 5], 7, 8), ([16], 8, 16), ([4], 8, 8)]
)
def test_the_next_batch_size_is_a_sum_of_group_sizes(sizes, least, works):
    assert rules.next_size(sizes, least) == works


def test_a_slow_environment_with_a_minimum_is_waited_for():
    needs = reason({(0, 4): 4}, 8, {1: 4})
    first = diagnose(still(WAITING, env(name="code-aaaaaa"), blocked_reason=needs))[0]
    assert (first.key, first.severity) == ("minimum-unmet", "waiting")
    assert first.cause.endswith("that is slow")


def test_parts_of_groups_are_waited_for_while_rollouts_run():
    held = {"buffered_sequences": 3, "shares": [{"name": "sums_0", "buffered": 3}]}
    assert diagnose(still(*HERE, ages=40.0, **held)) == []


def test_a_slow_answer_of_the_api_is_a_warning():
    slow = replace(
        HEALTHY,
        before=replace(HEALTHY.before, answer_s=1.4),
        now=replace(HEALTHY.now, answer_s=2.2),
    )
    assert diagnose(slow)[0].evidence == ("GET /status took 2.2 s",)


def test_groups_that_fit_no_batch_are_a_warning_while_others_are_still():
    text = "groups of 3 of sums_0 (env 0) fit no batch of 8 together with the other sizes (4)"
    found = diagnose(still(*HERE, blocked_reason=None, warnings=[text]))
    assert ("sizes-do-not-divide", "warning") in [(one.key, one.severity) for one in found]


def test_posts_that_were_refused_lately_are_named_before_what_follows_from_it():
    """The disk is full, so nothing arrives: drops of the environment are no cause."""
    full = "the disk of the store is full up to its reserve of 48 MB"
    reason = f"posts are refused: {full}; the queue is empty: waiting for scored groups"
    drops = "a group worth keeping: 16 of the last 16 groups dropped, same_scores: all 0"
    dropping = env("rollout, most groups dropped", drops)
    found = diagnose(still(WAITING, dropping, server(), blocked_reason=reason, refusal=full))
    assert found[0].key == "store-full" and found[0].evidence[0] == full


@pytest.mark.parametrize(
    ("ages", "tokens", "before"),
    [
        (12.0, {"unknown": 9, "age_s": 0.0}, {}),  # the index may lag behind the last post
        (17.0, {"unknown": 9, "age_s": 4.0}, {}),  # a balance from before the rest
        (90.0, {"unknown": 9, "age_s": 4.0}, {"unknown": 12}),  # the index catches up
        (90.0, {"unknown": 0, "moving": 50, "age_s": 4.0}, {}),
        (90.0, None, {}),  # an API of an earlier release
    ],
)
def test_tokens_are_not_missing_while_the_archive_may_still_take_them(ages, tokens, before):
    evidence = still(*HERE, ages=ages, tokens=tokens)
    status = {**evidence.before.status, "tokens": {**(tokens or {}), **before}}
    evidence = replace(evidence, before=replace(evidence.before, status=status))
    assert rules.tokens_unknown(evidence) is None


@pytest.mark.parametrize("tokens", [{**HALVED, "useful_recent": 0.31}, {"unknown": 0}, None])
def test_a_useful_share_above_half_of_the_usual_is_no_finding(tokens):
    assert rules.useful_share_halved(moving(tokens=tokens)) is None


def test_a_halved_share_is_left_out_where_its_cause_is_shown():
    deadly = moving(*HERE, batches_dead=1, dead_groups=4, tokens=HALVED)
    assert [finding.key for finding in diagnose(deadly)] == ["dead-batches"]


def test_the_environments_that_an_operator_steers_are_those_of_the_shares():
    shares = [
        SHARE | {"name": "sums_0", "state": "draining"},
        SHARE | {"name": "code_1", "state": "paused"},
        SHARE | {"name": "gone_2", "state": "paused", "connected": False},
        SHARE | {"name": "math_3", "state": "running"},
    ]
    first = diagnose(still(*HERE, shares=shares))[0]
    assert first.evidence == (
        "sums_0 is being drained by an operator",
        "code_1 is paused by an operator",
    )
    assert (
        first.remedy.startswith("atropos api steer sums_0 resume") and "1 more" in first.remedy
    )
    assert "paused-by-operator" not in {
        finding.key for finding in diagnose(still(*HERE, shares=shares, blocked_reason=None))
    }
