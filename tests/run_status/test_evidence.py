"""Evidence: counters, ages, silence and replacement; a rule fills in its own words."""

from __future__ import annotations

from dataclasses import replace

from atroposlib.api.run.metrics import Metrics
from atroposlib.run_status.evidence import (
    MAX_LINES,
    CounterValue,
    RuleMatch,
    RunSample,
    activity_of,
    fix,
    rule,
    shown_name,
)
from tests.run_status.staged import HEALTHY, counted, env, moving, server, still, trainer


def test_the_counters_of_the_api_have_their_labels():
    metrics = Metrics()
    metrics.acked.inc(3)
    metrics.observe_request("/groups", "POST", 404, 0.2)
    found = metrics.counters()
    assert CounterValue("batches_acked_total", {}, 3.0) in found
    about = {"method": "POST", "route": "/groups", "status": "404"}
    assert CounterValue("http_requests_total", about, 1.0) in found


def test_a_single_sample_shows_no_lack_of_progress():
    alone = still(trainer(), ages=90.0)
    assert alone.still and not replace(alone, before=alone.now).still


def test_a_long_phase_is_measured_by_the_usual_step_of_the_run():
    assert moving().long_s == 60.0 and moving(usual_step_s=20.0).long_s == 60.0
    assert moving(usual_step_s=300.0).long_s == 600.0


def test_progress_is_growth_of_a_counter_and_never_negative():
    assert HEALTHY.grown("groups_in_total") == 10
    assert not HEALTHY.still and not HEALTHY.idle("groups", 0.1)
    restarted = replace(HEALTHY, now=replace(HEALTHY.now, counters=counted(5.0)))
    assert restarted.grown("groups_in_total") == 0


def test_a_run_is_idle_after_its_age_only():
    assert still(trainer(), ages=20.0).idle("groups")
    assert not still(trainer(), ages=5.0).idle("groups")


def test_an_age_without_an_event_is_that_of_the_process():
    assert moving(ages_s={"uptime": 9.0}).age("acked") == 9.0
    assert moving(ages_s={}).age("acked") == 0.0


def test_an_ended_process_is_neither_fresh_nor_silent():
    ended = env(ended=1) | {"age_s": 40.0}
    found = moving(trainer(ended=1), ended)
    assert found.trainer is None and found.silent("env") == [] and found.fresh("env") == []


def test_servers_are_silent_by_the_reports_of_their_callers():
    found = moving(trainer(), server(name="a", silent_s=20.0), server(name="b"))
    assert [one["name"] for one in found.silent("inference")] == ["a"]
    assert [one["name"] for one in found.fresh("inference")] == ["b"]


def test_progress_at_another_replica_is_progress():
    """Its counters are not in the metrics of this one, its acks are in the store."""
    found = still(trainer())
    assert found.still
    acked = {**found.status, "batches_acked": found.status["batches_acked"] + 1}
    assert not replace(found, now=replace(found.now, status=acked)).still


@rule(99, "waiting", "the cause")
@fix("the remedy")
def an_example(evidence):
    return RuleMatch(["one"] if evidence.started else [], severity="warning")


@rule(98, "stuck", "the cause")
@fix("the remedy")
def a_long_list(evidence):
    return [f"line {n}" for n in range(9)]


def test_a_finding_has_the_words_of_its_rule_and_the_time_of_the_look():
    found = an_example(HEALTHY)
    assert (found.rule, found.key, found.severity) == (99, "an-example", "warning")
    assert (found.cause, found.remedy, found.evidence) == ("the cause", "the remedy", ("one",))
    assert found.at == HEALTHY.now.at


def test_without_evidence_there_is_no_finding():
    assert an_example(replace(HEALTHY, now=RunSample(1.0))) is None


def test_a_long_list_of_evidence_ends_with_the_number_of_the_others():
    shown = a_long_list(HEALTHY).evidence
    assert shown == (*(f"line {n}" for n in range(MAX_LINES)), "and 4 more")


def test_an_environment_is_shown_by_the_name_that_the_api_gave_it():
    assert shown_name(env(name="sums-0a1b2c", env="sums_1")) == "sums_1"
    assert shown_name(env(name="sums-0a1b2c")) == "sums"  # it has not joined yet
    assert "sums_1: rollout" in activity_of(env(name="sums-0a1b2c", env="sums_1"))
