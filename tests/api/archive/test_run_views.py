"""Batches, curves, histograms, weights and events of a run."""

from __future__ import annotations

import pytest

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.records import EventFact, StepFact, WeightFact
from atroposlib.api.archive.run_views import MAX_POINTS, bucket_means
from atroposlib.api.store import open_store
from atroposlib.errors import ConfigError, UnknownGroup
from tests.api.archive.rollouts import batch, group, index_of, row


@pytest.fixture(scope="module")
def explorer():
    index = index_of(
        group(1, [row(0.0, version_min=5), row(1.0, version_min=4)], item="a"),
        group(2, [row(3.0), row(3.0)], env="code"),
        group(3, [row(9.0)]),
        batch(1, (1, 2)),
        batch(2, (3,), state="open"),
        StepFact("trainer", "t", 10, 1.0, {"loss": 0.5, 'odd "key"': 2}, batch_no=1),
        StepFact("env", "math", 3, 1.0, {"loss": 7.0, "items": 2}),
        EventFact("a-1", "batch", 5.0, {"no": 1}),
        EventFact("a-2", "policy_version", 6.0, {"version": 2}),
        StepFact("trainer", "t", 11, 3.0, {"version": 2, "seconds_publish": 0.5}),
        WeightFact("http://a", 1, 1.0),
        WeightFact("http://a", 2, 2.0),
    )
    yield Explorer(index, open_store("memory"))
    index.close()


def test_batches_come_newest_first_in_pages(explorer):
    page = explorer.batches({"limit": "1"})
    assert ([one.no for one in page.batches], page.next) == ([2], "2")
    [first] = explorer.batches({"after": page.next}).batches
    assert (first.no, first.step, first.state, first.ranks) == (1, 10, "acked", [0, 1])
    assert (first.groups, first.claimed, first.acked) == (2, 5.0, None)
    assert {part.env: part.sequences for part in first.envs} == {"math": 2, "code": 2}
    assert first.staleness == {"0": 1, "1": 1}


def test_a_batch_lists_its_groups_with_mean_and_spread(explorer):
    members = explorer.batch(1, {}).members
    shown = [
        (one.gid, one.item, one.n_seq, one.reward_mean, one.reward_std) for one in members
    ]
    assert shown == [(1, "a", 2, 0.5, 0.5), (2, None, 2, 3.0, 0.0)]
    for no in (0, 9, 10**30):
        with pytest.raises(UnknownGroup):
            explorer.batch(no, {})


def test_curves_come_from_the_rollup_and_from_reported_steps(explorer):
    curves = explorer.curves({"keys": "reward,loss"})
    assert {"reward", "loss", "items", 'odd "key"'} <= set(curves.keys)
    shown = {(one.key, one.env, one.source): one.points for one in curves.series}
    assert shown == {
        ("reward", None, "rollup"): [(2, 9.0), (10, 1.75)],
        ("loss", None, "trainer"): [(10, 0.5)],
        ("loss", "math", "env"): [(3, 7.0)],
    }
    late = explorer.curves({"keys": "reward,loss", "from": "9"}).series
    assert [one.points for one in late] == [[(10, 1.75)], [(10, 0.5)]]
    [curve] = explorer.curves({"keys": "reward_std", "env": "code"}).series
    assert curve.points == [(10, 0.0)]
    [odd] = explorer.curves({"keys": 'odd "key"'}).series
    assert odd.points == [(10, 2.0)]


def test_long_curves_are_means_of_buckets():
    points = bucket_means(((step, float(step)) for step in range(10 * MAX_POINTS)))
    assert len(points) == MAX_POINTS
    assert points[:2] == [(0, 4.5), (10, 14.5)]
    assert bucket_means([(1, None)]) == [(1, None)]
    assert bucket_means([]) == []


def test_a_histogram_counts_every_row_once(explorer):
    shown = explorer.histogram({"field": "reward"})
    assert (len(shown.bins), sum(one.n for one in shown.bins), shown.nulls) == (20, 5, 0)
    assert (shown.bins[0].n, shown.bins[-1].n) == (1, 1)
    assert explorer.histogram({"field": "staleness"}).nulls == 3
    [one] = explorer.histogram({"env": "code"}).bins
    assert (one.start, one.n) == (3.0, 2)
    assert explorer.histogram({"env": "none"}).bins == []


def test_weights_show_versions_servers_and_publishes(explorer):
    weights = explorer.weights({})
    assert [(one.version, one.at) for one in weights.versions] == [(2, 6.0)]
    held = [(one.name, one.version, one.at) for one in weights.servers]
    assert held == [("http://a", 1, 1.0), ("http://a", 2, 2.0)]
    [publish] = weights.publishes
    assert (publish.version, publish.publish_s, publish.check_s) == (2, 0.5, None)


def test_events_come_oldest_first_in_pages(explorer):
    page = explorer.events({"limit": "1"})
    assert [(one.id, one.fields) for one in page.events] == [("a-1", {"no": 1})]
    rest = explorer.events({"after": page.next})
    assert ([one.kind for one in rest.events], rest.next) == (["policy_version"], None)


@pytest.mark.parametrize(
    ("view", "given"),
    [
        ("batches", {"state": "open"}),
        ("curves", {"keys": "a", "bucket": "0"}),
        ("curves", {"keys": ",".join(map(str, range(65)))}),
        ("histogram", {"field": "gid; DROP TABLE rollout"}),
        ("histogram", {"answer": "80"}),
        ("weights", {"x": "1"}),
        ("events", {"after": "x"}),
    ],
)
def test_wrong_parameters_are_refused(explorer, view, given):
    with pytest.raises(ConfigError):
        getattr(explorer, view)(given)
