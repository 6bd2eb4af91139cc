"""Counters, gauges and ages in a scrape after a sequence of calls."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.records import (
    BatchMember,
    GroupState,
    LeasedBatch,
    Stored,
)
from atroposlib.api.guards.auth import route_of
from atroposlib.api.run.metrics import MAX_ENVS, Metrics, lag_of
from atroposlib.api.web.request_log import RequestLog
from atroposlib.utils.http.gate import Gate
from atroposlib.wire import EnvShare, Participant, RunStatus

STATUS = RunStatus(
    current_step=3,
    queue_size=5,
    state="started",
    run_id="r",
    policy_version=7,
    queued_sequences=8,
    leased_sequences=4,
    buffered_sequences=1,
    batches_acked=2,
    blocked_reason=None,
    participants=[],
)


def status(**more):
    return STATUS.model_copy(update=more)


def scrape(metrics, **more):
    """{(sample name, label values ...): value} of one scrape."""
    page = metrics.exposition(status(**more)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def new(env=0, n_seq=2, posted_as="json", payload=b"12345"):
    return ParsedGroup(payload, n_seq, n_tokens=10, posted_as=posted_as, env=env)


def stored(gid=1, duplicate=False):
    return Stored(gid, duplicate, GroupState.PENDING)


def batch(*members, epoch=1, dropped=0):
    return LeasedBatch(1, epoch, 1, tuple(members), dropped=dropped)


def member(version, arrived_version):
    return BatchMember(1, 0, 2, 10, version, arrived_version, 100)


def test_groups_count_by_environment_and_media_and_a_duplicate_counts_once():
    metrics = Metrics({0: "gsm8k_0", 1: "chess_0"}.get)
    metrics.accepted(
        [new(), new(1, 4, "safetensors"), new(None), new()],
        [stored(), stored(), stored(), stored(duplicate=True)],
    )
    shown = scrape(metrics)
    assert shown["atropos_groups_in_total", "gsm8k_0", "json"] == 1
    assert shown["atropos_groups_in_total", "chess_0", "safetensors"] == 1
    assert shown["atropos_groups_in_total", "none", "json"] == 1
    assert shown["atropos_groups_duplicate_total", "gsm8k_0"] == 1
    assert shown["atropos_sequences_in_total", "chess_0"] == 4
    assert shown["atropos_tokens_in_total", "gsm8k_0"] == 10
    assert shown["atropos_bytes_in_total", "gsm8k_0", "json"] == 5


def test_environments_beyond_the_label_limit_share_one_label():
    metrics = Metrics()
    groups = [new(env) for env in range(MAX_ENVS + 50)]
    metrics.accepted(groups, [stored()] * len(groups))
    shown = scrape(metrics)
    assert shown["atropos_groups_in_total", "other", "json"] == 50
    assert sum(1 for key in shown if key[0] == "atropos_groups_in_total") == MAX_ENVS + 1


def test_staleness_is_measured_at_the_first_delivery():
    metrics = Metrics()
    assert metrics.staleness() is None
    metrics.delivered(batch(member(3, 5), member(5, 5), member(None, 5), dropped=2), 6)
    metrics.delivered(batch(member(3, 5), epoch=2), 9)  # the same batch again
    report = metrics.staleness()
    assert report is not None and report.groups == 2
    assert report.in_flight is not None and report.in_queue is not None
    assert (report.in_flight.mean, report.in_flight.max) == (1.0, 2.0)
    assert (report.in_queue.mean, report.in_queue.p95) == (1.0, 1.0)
    shown = scrape(metrics, staleness=report)
    assert shown["atropos_batches_delivered_total",] == 1
    assert shown["atropos_batches_redelivered_total",] == 1
    assert shown["atropos_groups_stale_total",] == 2
    assert shown["atropos_staleness_in_flight_sum",] == 2
    assert shown["atropos_staleness", "max", "in_flight"] == 2


def test_a_group_newer_than_a_rewound_policy_is_not_stale():
    metrics = Metrics()
    metrics.delivered(batch(member(9, 5)), 2)
    report = metrics.staleness()
    assert report is not None and report.in_flight is not None
    assert report.in_flight.max == 0.0


@pytest.mark.parametrize(
    ("values", "p95"), [([4], 4), ([1, 2], 2), (range(1, 101), 95), ([0] * 19 + [7], 0)]
)
def test_the_95th_percentile_is_one_of_the_measured_values(values, p95):
    assert lag_of(list(values)).p95 == p95


def test_gauges_equal_the_status_and_omit_environments_that_left():
    metrics = Metrics()
    here = EnvShare(env_id=0, name="a_0", weight=1.0, asked=0.25, realised=0.5)
    waiting = Participant(
        role="env", name="a_0", phase="rollout", waiting_on="a server", age_s=0.0
    )
    shown = scrape(metrics, shares=[here], participants=[waiting], blocked_reason="few")
    assert shown["atropos_env_share_asked", "a_0"] == 0.25
    assert shown["atropos_env_share_realised", "a_0"] == 0.5
    assert shown["atropos_sequences", "queued"] == 8
    assert shown["atropos_batches", "acked"] == 2
    assert shown["atropos_policy_version",] == 7
    assert shown["atropos_blocked",] == 1
    assert shown["atropos_participants_waiting", "env"] == 1
    later = scrape(metrics)
    assert ("atropos_env_share_asked", "a_0") not in later
    assert later["atropos_blocked",] == 0


def test_two_apps_in_one_process_have_separate_metrics():
    one, other = Metrics(), Metrics()
    one.marked.labels("advantages_length").inc()
    one.refused.labels("unknown_env").inc()
    one.acked.inc()
    one.committed.inc(3)
    shown = scrape(one)
    assert shown["atropos_groups_marked_total", "advantages_length"] == 1
    assert shown["atropos_requests_refused_total", "unknown_env"] == 1
    assert shown["atropos_batches_acked_total",] == 1
    assert shown["atropos_batches_committed_total",] == 3
    assert ("atropos_groups_marked_total", "advantages_length") not in scrape(other)


def test_a_call_of_the_store_is_measured_under_its_name_also_when_it_fails():
    def claim(no):
        raise KeyError(no)

    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.timed("claim", lambda: claim(3))
    assert scrape(metrics)["atropos_store_seconds_count", "claim"] == 1


async def through(metrics, app, path="/batches/17/ack", method="POST"):
    async def send(message):
        pass

    async def receive():
        return {"type": "http.request"}

    timed = Gate(app, (), route_of=route_of, record=RequestLog(metrics))
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    await timed(scope, receive, send)


async def test_requests_count_by_route_method_and_status():
    async def app(scope, receive, send):
        assert scrape(metrics)["atropos_http_in_flight",] == 1
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body"})

    metrics = Metrics()
    await through(metrics, app)
    await through(metrics, app, "/b", "BREW")
    shown = scrape(metrics)
    assert shown["atropos_http_requests_total", "POST", "/batches/{no}/ack", "401"] == 1
    assert shown["atropos_http_requests_total", "OTHER", "unknown", "401"] == 1
    assert shown["atropos_http_seconds_count", "/batches/{no}/ack"] == 1
    assert shown["atropos_http_in_flight",] == 0


async def test_a_client_that_hung_up_before_the_answer_counts_as_499():
    async def app(scope, receive, send):
        raise ConnectionResetError

    metrics = Metrics()
    with pytest.raises(ConnectionResetError):
        await through(metrics, app)  # the gate sends a 500 to nobody
    assert (
        scrape(metrics)["atropos_http_requests_total", "POST", "/batches/{no}/ack", "499"] == 1
    )
