"""Rules about processes: each fires on its stall, names it first, and not on a healthy run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atroposlib.envs.runtime.serve import EnvPhase
from atroposlib.run_status import evidence as words, rules_processes as rules
from atroposlib.run_status.diagnosis import diagnose
from atroposlib.run_status.evidence import Rule, RunSample
from tests.run_status.staged import (
    EVALUATION,
    HEALTHY,
    SERVER,
    STATUS,
    URL,
    env,
    moving,
    server,
    still,
    trainer,
)

LATE = {"phase_s": 300.0, "phase_median_s": 4.0}
SILENT_SERVER = server(silent_s=25.0)
PAUSED = env("paused: queue full", "the trainer to take a batch", rollouts_running=0)
SAME = "a group worth keeping: 16 of the last 16 groups dropped, same_scores: all 0"
LONG = "a group worth keeping: 9 of the last 16 groups dropped, too_long: 900 of 512 tokens"
FULL_STATUS = {"blocked_reason": None, "batches_open": 0}
WAITING = trainer("waiting for batch")

FOR_TEACHER = {
    "cause": "server",
    "on": "the teacher http://b/v1: logprobs of 4 sequences",
    "age_s": 31.0,
}

# rule -> (evidence, severity, a part of the evidence or the remedy)
STALLS = {
    "api-silent": (
        replace(HEALTHY, now=RunSample(1002.0, problem="connected, no answer within 5 s")),
        "stuck",
        "no answer within 5 s",
    ),
    "no-trainer": (
        still(env("waiting for trainer"), state="EMPTY", blocked_reason="no trainer"),
        "waiting",
        "state EMPTY",
    ),
    "trainer-starting": (
        still(trainer("waiting for inference servers", waiting_on=SERVER), state="EMPTY"),
        "waiting",
        SERVER,
    ),
    "trainer-silent": (
        still(trainer("waiting for batch", age_s=26.0), PAUSED, batches_open=0),
        "stuck",
        "silent since 26 s, last phase 'waiting for batch'",
    ),
    "trainer-silent-in-step": (
        still(trainer(age_s=26.0), PAUSED),
        "stuck",
        "batch 4: 512 sequences, lease ends in 280 s",
    ),
    "environment-silent": (
        still(WAITING, env("paused: queue full") | {"age_s": 26.0}, server()),
        "stuck",
        "env sums: silent since 26 s",
    ),
    "inference-silent": (still(WAITING, env(), SILENT_SERVER), "stuck", "no answer for 25 s"),
    "teacher-silent": (
        still(WAITING, env() | {"waits": [FOR_TEACHER]}, server()),
        "stuck",
        "sums waits for the teacher http://b/v1: logprobs of 4 sequences (31 s)",
    ),
    "long-generations": (
        still(WAITING, env(oldest_rollout_s=88.0), server()),
        "waiting",
        "8 rollouts run, the oldest for 88 s",
    ),
    "servers-paused": (
        still(trainer("publishing weights", **LATE), env(), server()),
        "stuck",
        "publishing weights for 300 s, median 4.0 s",
    ),
    "rollouts-fail": (
        still(WAITING, env(failed_in_a_row=7, last_error="ZeroDivisionError"), server()),
        "stuck",
        "7 failures in a row, last: ZeroDivisionError",
    ),
    "context-full": (
        still(WAITING, env(samples_context_full=20, groups_sent=12), server()),
        "warning",
        "20 rollouts, with 12 groups sent",
    ),
    "same-scores": (
        still(WAITING, env(words.DROPPING, SAME), server()),
        "stuck",
        "16 of the last 16 groups dropped",
    ),
    "groups-dropped": (
        still(WAITING, env(words.DROPPING, LONG), server()),
        "stuck",
        "--env.max_token_length",
    ),
    "not-admitted": (
        still(WAITING, env("paused: not admitted", "more than 2 versions later")),
        "stuck",
        "more than 2 versions later",
    ),
    "trainer-evaluates": (
        still(trainer("evaluating", waiting_on="the evaluation", **EVALUATION), PAUSED),
        "waiting",
        "version 20 of step 20 (dir), 35 s of at most 600 s",
    ),
    "trainer-bound": (still(trainer(), PAUSED, server()), "waiting", "48 sequences queued"),
    "full-without-batch": (still(WAITING, PAUSED, server()), "stuck", "48 of 512"),
    "slow-step": (still(trainer(**LATE), env()), "stuck", "training for 300 s"),
    "mostly-dropped": (
        moving(trainer(), env(words.DROPPING, LONG), server()),
        "warning",
        "sums: a group worth keeping: 9 of the last 16 groups dropped",
    ),
    "two-apis": (
        replace(
            still(env("waiting for trainer"), state="EMPTY", batches_open=0),
            now=RunSample(
                1002.0,
                {**STATUS, "state": "EMPTY", "participants": [env("waiting for trainer")]},
                elsewhere=("http://127.0.0.1:8001",),
            ),
        ),
        "stuck",
        "http://127.0.0.1:8001: STARTED",
    ),
    "clocks-differ": (
        moving(trainer(), env(clock=400.0), server()),  # at both looks
        "warning",
        "sums-0a1b2c: +599 s",
    ),
    "complete": (
        still(trainer("done", age_s=40.0, ended=1), env("draining")),
        "waiting",
        "done at step 4",
    ),
}


@pytest.mark.parametrize("key", STALLS)
def test_a_stall_is_named_first(key):
    evidence, severity, part = STALLS[key]
    first = RULES[key](evidence) if key == "two-apis" else diagnose(evidence)[0]
    assert (first.key, first.severity) == (key, severity)
    assert part in "\n".join([*first.evidence, first.remedy])


RULES = {one.key: one for one in vars(rules).values() if isinstance(one, Rule)}


def test_every_rule_of_the_module_has_a_staged_stall():
    assert STALLS.keys() == RULES.keys()


@pytest.mark.parametrize("key", RULES)
def test_a_healthy_run_has_no_finding(key):
    assert RULES[key](HEALTHY) is None


@pytest.mark.parametrize("key", sorted(STALLS.keys() - {"api-silent", "clocks-differ"}))
def test_the_same_states_with_progress_are_never_stuck(key):
    found = STALLS[key][0]
    lively = moving(**{"participants": found.now.status["participants"]})
    named = RULES[key](lively)
    silences = {"trainer-silent-in-step", "environment-silent", "inference-silent"}
    assert named is None or named.severity != "stuck" or key in silences


def test_a_batch_that_nobody_takes_for_minutes_names_a_trainer_without_heartbeats():
    found = still(env(), server(), ages=400.0, blocked_reason=None, batches_open=0)
    assert "none was taken for 400 s" in diagnose(found)[0].evidence[0]


def test_a_teacher_that_is_slow_is_a_wait_and_no_stall():
    found = diagnose(moving(trainer(), env() | {"waits": [FOR_TEACHER]}, server()))
    assert [(one.key, one.severity) for one in found] == [("teacher-silent", "waiting")]
    of_server = {**FOR_TEACHER, "on": "an inference server"}
    assert diagnose(moving(trainer(), env() | {"waits": [of_server]}, server())) == []


def test_one_silent_environment_of_two_and_one_silent_server_of_two_are_warnings():
    gone = env(name="other-0a1b2c") | {"age_s": 30.0}
    found = diagnose(moving(trainer(), env(), gone, server()))
    assert [(one.key, one.severity) for one in found] == [("environment-silent", "warning")]
    found = diagnose(
        moving(trainer(), env(), server(), server(name="http://b", silent_s=20.0))
    )
    assert [(one.key, one.severity) for one in found] == [("inference-silent", "warning")]


def test_a_run_whose_environment_still_starts_waits_and_is_not_stuck():
    young = still(WAITING, server(), ages_s={"uptime": 40.0, "started": 20.0})
    [found] = [one for one in diagnose(young) if one.key == "environment-silent"]
    assert (found.severity, found.cause) == ("waiting", "no environment has joined yet")


def test_a_replaced_environment_is_not_silent():
    old = env(name="sums-999999") | {"age_s": 60.0}
    assert diagnose(moving(trainer(), env(), old, server())) == []


def test_a_server_that_stays_paused_without_a_publish_is_named():
    found = still(WAITING, env(), server(paused=1))
    assert f"{SERVER}/v1: paused, 8 requests wait" in diagnose(found)[0].evidence


def test_a_pause_while_groups_arrive_is_no_finding():
    assert diagnose(moving(trainer("publishing weights"), env(), server(paused=1))) == []


def test_a_recorded_end_is_complete_while_the_environments_still_leave():
    ended = moving(trainer("done", ended=1), env("draining"), ended_step=16, num_steps=16)
    [found] = [one for one in diagnose(ended) if one.key == "complete"]
    assert found.evidence[0] == "atropos-grpo m: done at step 16 of 16"


def test_a_late_heartbeat_is_no_wrong_clock():
    late = moving(trainer(), env(clock=990.0), server())
    on_time = [trainer(), env(clock=1000.5), server()]
    before = replace(late.before, status={**late.before.status, "participants": on_time})
    assert diagnose(late)[0].key == "clocks-differ"
    assert diagnose(replace(late, before=before)) == []


def test_slow_rollouts_with_half_of_their_groups_dropped_are_not_stuck():
    slow = env(words.DROPPING, LONG, oldest_rollout_s=30.0)
    found = diagnose(still(WAITING, slow, server(), ages=40.0))
    assert [(one.key, one.severity) for one in found] == [("mostly-dropped", "warning")]


def test_tokens_per_second_of_a_server_are_evidence_of_long_generations():
    found = still(WAITING, env(oldest_rollout_s=88.0), server(tokens_per_s=100.0))
    assert f"{SERVER}/v1: 8 requests, 100 tokens/s" in diagnose(found)[0].evidence


def test_the_phases_are_those_of_the_environment():
    known = {phase.value for phase in EnvPhase}
    assert {words.PAUSED, words.NOT_ADMITTED, words.FOR_TRAINER, words.DROPPING} <= known
    assert {*words.OPERATOR_PHASES} <= known
    assert URL  # the address is part of every evidence
