"""The verdict on a run: states, sentences, and a line per process."""

from __future__ import annotations

import pytest

from atroposlib.run_status.verdict import EXIT_STATUS, judge, process_lines, waits_of
from tests.run_status.staged import (
    EVALUATION,
    HEALTHY,
    env,
    moving,
    process,
    server,
    still,
    trainer,
)
from tests.run_status.test_rules_processes import PAUSED, STALLS, WAITING


def lines_of(evidence):
    return {line.label: (line.state, line.text) for line in process_lines(evidence)}


def test_a_healthy_run_says_step_usual_time_last_batch_and_what_goes_on():
    verdict = judge(moving(usual_step_s=32.0, num_steps=16))
    assert verdict.state == "healthy" and verdict.remedy == "" and verdict.findings == ()
    assert verdict.line == (
        "step 4 of 16, 32 s a step, last batch trained 2 s ago; "
        "the trainer trains batch 4 (1 s, usual 2 s)"
    )


def test_a_healthy_run_says_the_useful_share_of_its_tokens():
    tokens = {"generated": 90, "trained": 55, "useful": 55 / 90}
    line = judge(moving(tokens=tokens)).line
    assert "last batch trained 2 s ago, 61% of the tokens useful; the trainer" in line
    assert "useful" not in judge(moving(tokens={**tokens, "trained": 0, "useful": 0.0})).line


def test_rates_are_those_of_the_last_seconds():
    verdict = judge(HEALTHY)
    assert (verdict.groups_per_s, verdict.tokens_per_s) == (5.0, 50.0)


def test_environments_that_wait_for_the_trainer_at_work_wait_on_purpose():
    verdict = judge(moving(trainer(phase_s=20.0, phase_median_s=32.0), PAUSED, server()))
    assert verdict.state == "healthy"
    assert verdict.line.endswith("(20 s, usual 32 s); the environments wait for it on purpose")
    assert "queue is empty" not in verdict.line


def test_a_trainer_without_a_batch_says_what_is_queued():
    verdict = judge(moving(WAITING, env(), server()))
    assert verdict.line.endswith(
        "the trainer waits for a batch: 48 of 512 sequences queued: waiting for scored groups"
    )


@pytest.mark.parametrize(
    ("key", "state", "status"),
    [
        ("api-silent", "unreachable", 3),
        ("no-trainer", "waiting", 1),
        ("slow-step", "stuck", 2),
        ("clocks-differ", "healthy", 0),
        ("complete", "done", 0),
    ],
)
def test_the_state_and_the_exit_status_follow_the_strongest_finding(key, state, status):
    verdict = judge(STALLS[key][0])
    assert verdict.state == state and EXIT_STATUS[state] == status


def test_a_warning_leaves_a_run_healthy_and_stays_in_its_findings():
    verdict = judge(STALLS["mostly-dropped"][0])
    assert verdict.state == "healthy" and verdict.line.startswith("step 4")
    assert [finding.key for finding in verdict.findings] == ["mostly-dropped"]


def test_a_done_run_is_done_whatever_its_environments_still_do():
    ended = still(
        trainer("done", ended=1), env() | {"age_s": 30.0}, ended_step=16, num_steps=16
    )
    verdict = judge(ended)
    assert verdict.state == "done" and "done at step 16 of 16" in verdict.line


# --- processes ------------------------------------------------------------------------------


def test_each_process_has_a_line_with_its_waits_and_their_ages():
    waits = [
        {"cause": "api", "on": "rollout API: HTTP 429", "age_s": 10.0},
        {"cause": "groups", "on": "a group worth keeping", "age_s": 40.0},
    ]
    busy = env() | {"waits": waits, "age_s": 1.0}
    state, text = lines_of(moving(trainer(), busy, server()))["sums"]
    assert state == "waits"
    assert (
        text == "rollout, waits for rollout API: HTTP 429 (11 s); a group worth keeping (41 s)"
    )


def test_an_evaluation_in_the_background_has_a_line_while_the_trainer_trains():
    lines = lines_of(moving(trainer(**EVALUATION), env(), server()))
    assert lines["evaluation"] == (
        "works",
        "version 20 of step 20 (dir), 35 s of at most 600 s",
    )
    silent = moving(trainer(**EVALUATION) | {"age_s": 26.0}, env(), server())
    assert "evaluation" not in lines_of(silent)


@pytest.mark.parametrize("phase", ["paused by an operator", "drained by an operator"])
def test_an_environment_that_an_operator_holds_back_waits(phase):
    assert lines_of(moving(trainer(), env(phase), server()))["sums"] == ("waits", phase)


def test_the_wait_of_an_older_version_is_its_single_reason():
    old = process("env", "e-0a1b2c", "rollout", "a reply", age_s=3.0)
    assert [(wait["on"], wait["age_s"]) for wait in waits_of(old)] == [("a reply", 3.0)]


def test_a_silent_process_shows_no_wait_that_it_reported_before():
    gone = env("paused: queue full", "the trainer to take a batch") | {"age_s": 26.0}
    state, text = lines_of(still(WAITING, gone, server()))["sums"]
    assert (state, text) == ("silent", "silent since 26 s, last phase 'paused: queue full'")


def test_a_silent_process_is_named_for_as_long_as_nothing_replaces_it():
    """The panel once forgot a dead trainer after two minutes."""
    dead = trainer(age_s=400.0)
    assert lines_of(still(dead, env(), server()))["atropos-grpo m"][0] == "silent"


def test_a_wait_for_the_trainer_from_before_the_last_batch_is_over():
    ages = {"uptime": 50.0, "groups": 0.5, "batch": 1.0, "acked": 9.0}
    waits = [{"cause": "trainer", "on": "the trainer to take a batch", "age_s": 5.0}]
    before = env("paused: queue full", age_s=1.5) | {"waits": waits, "age_s": 1.5}
    since = before | {"age_s": 0.2}
    assert lines_of(moving(trainer(), before, ages_s=ages))["sums"][0] == "works"
    assert lines_of(moving(trainer(), since, ages_s=ages))["sums"][0] == "waits"


def test_an_ended_environment_is_named_while_no_batch_can_form():
    ended = env("draining", ended=1) | {"age_s": 200.0}
    assert lines_of(moving(WAITING, ended))["sums"] == ("ended", "has ended (200 s ago)")
    assert "sums" not in lines_of(moving(WAITING, ended, blocked_reason=None))


def test_a_replaced_process_has_no_line():
    old = env(name="sums-999999") | {"age_s": 60.0}
    assert len(lines_of(moving(trainer(), env(), old, server()))) == 3


@pytest.mark.parametrize("kind", ["batch", "acked", "policy_version"])
def test_every_move_of_the_trainer_may_end_a_wait_for_it(kind):
    waits = [{"cause": "trainer", "on": "the trainer to take a batch", "age_s": 5.0}]
    beat = env("paused: queue full") | {"waits": waits, "age_s": 1.0}
    still_waits = moving(trainer(), beat, ages_s={"uptime": 50.0})
    over = moving(trainer(), beat, ages_s={"uptime": 50.0, kind: 0.2})
    assert lines_of(still_waits)["sums"][0] == "waits" and lines_of(over)["sums"][0] == "works"
