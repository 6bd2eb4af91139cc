from __future__ import annotations

import json

from atroposlib.live.sources import (
    JsonLines,
    Sources,
    TokenRate,
    WaitHistory,
    WatchedRun,
    counter,
    drop_warnings,
    dropped_groups,
    largest,
    measures_of,
    phase_of,
    seconds_left,
    version_of,
)
from atroposlib.quickstart.recipes import ServingEngine
from atroposlib.wire import MOSTLY_DROPPED

STATUS = {
    "blocked_reason": "3 of 8 groups are queued",
    "participants": [
        {"role": "trainer", "name": "trainer", "phase": "waiting for batch", "age_s": 0.1},
        {"role": "env", "name": "sums_0", "phase": "rollout", "waiting_on": "a reply"},
    ],
}


def test_the_reason_of_the_api_comes_first_and_every_wait_has_its_age():
    waits = WaitHistory()
    waits.lines(STATUS, 100.0)
    assert waits.lines({**STATUS, "blocked_reason": "4 of 8 groups are queued"}, 107.0) == (
        "no batch yet: 4 of 8 groups are queued (7 s)",
        "sums_0: rollout, waits for a reply (7 s)",
        "trainer: waiting for batch (7 s)",
    )
    assert phase_of(STATUS) == "waiting for batch"
    assert phase_of(None) == "the rollout API does not answer"
    assert WaitHistory().lines(None, 0.0) == ()


def test_a_wait_from_before_the_last_batch_is_left_out_until_the_next_heartbeat():
    def status(step, reason, beat_age_s):
        env = {"role": "env", "name": "copy", "phase": "paused: queue full"}
        env.update(waiting_on="the trainer to take a batch", age_s=beat_age_s)
        trainer = {"role": "trainer", "phase": "waiting for batch", "age_s": 0.0}
        trainer["waiting_on"] = "a batch: 0 of 512 sequences queued: waiting for scored groups"
        document = {"current_step": step, "blocked_reason": reason}
        return {**document, "participants": [env, trainer]}

    waits, paused = WaitHistory(), "copy: paused: queue full, waits for the trainer to take"
    few = "432 of 512 sequences queued: waiting for scored groups"
    full = waits.lines(status(3, None, 0.1), 10.0)
    assert full == (f"{paused} a batch (0 s)", "trainer: waiting for batch (0 s)")
    taken = waits.lines(status(4, few, 0.6), 10.5)
    assert taken == (f"no batch yet: {few} (0 s)", "trainer: waiting for batch (0 s)")
    assert not any(paused in line for line in waits.lines(status(4, few, 1.1), 11.0))
    assert any(paused in line for line in waits.lines(status(4, few, 0.2), 13.0))


def test_dropped_groups_of_all_environments_are_counted_by_their_reasons():
    def env(sent, **dropped):
        counts = {f"dropped_{reason}": count for reason, count in dropped.items()}
        details = {"groups_sent": sent, "groups_dropped": sum(dropped.values()), **counts}
        return {"role": "env", "details": {**details, "samples_failed": 7}}

    trainer = {"role": "trainer", "details": {"step": 3}}
    listed = [trainer, env(2, too_long=1, same_scores=2), env(1, same_scores=1)]
    shown = dropped_groups({"participants": listed})
    assert shown == "dropped 4 of 7 groups (same_scores, too_long)"
    assert dropped_groups({"participants": [env(2)]}) == dropped_groups(None) == ""


def test_an_environment_that_drops_most_groups_is_a_warning_until_it_is_silent():
    env = {"role": "env", "name": "toy", "phase": MOSTLY_DROPPED, "waiting_on": "a group"}
    other = {"role": "env", "name": "sums", "phase": "rollout"}
    late = {**env, "name": "gone", "age_s": 16.0}
    assert drop_warnings({"participants": [env, other, late]}) == (
        "toy: rollout, most groups dropped, waits for a group",
    )
    assert drop_warnings(None) == ()


def test_the_measures_are_those_of_the_environment_and_the_entropy():
    row = {"env/solved": 0.25, "env/reward": 0.5, "env/turns": 1.0, "loss": 9.0}
    assert measures_of({**row, "entropy": 0.01523}) == "solved 0.25  turns 1  entropy 0.0152"
    assert measures_of({}) == ""


def test_a_silent_process_is_marked_and_later_removed():
    def env(age_s):
        return {"participants": [{"role": "env", "name": "sums_0", "age_s": age_s}]}

    assert WaitHistory().lines(env(40.0), 0.0) == ("sums_0: silent (40 s)",)
    assert WaitHistory().lines(env(200.0), 0.0) == ()


def test_an_environment_that_has_ended_is_named_while_no_batch_can_form():
    env = {"role": "env", "name": "sums_0", "age_s": 200.0, "details": {"ended": 1}}
    status = {"participants": [env], "blocked_reason": "the queue is empty"}
    wait, ended = WaitHistory().lines(status, 0.0)
    assert (wait, ended) == (
        "no batch yet: the queue is empty (0 s)",
        "sums_0: has ended (200 s)",
    )
    assert WaitHistory().lines({"participants": [env]}, 0.0) == ()


def test_the_time_left_is_that_of_the_steps_to_do_at_the_pace_of_the_last():
    rows = [{"step": n, "seconds_wait": 3.0, "seconds_train": 1.0} for n in (1, 2)]
    assert seconds_left(rows, 10) == 32.0
    assert seconds_left([], 10) is None


def test_the_phase_is_that_of_the_last_trainer_to_report():
    old = {"role": "trainer", "phase": "training", "age_s": 50.0}
    new = {"role": "trainer", "phase": "publishing weights", "age_s": 0.2}
    assert phase_of({"participants": [old, new]}) == "publishing weights"


def test_a_partly_written_line_is_read_after_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    assert lines.read() == []
    path.write_text(json.dumps({"step": 1}) + '\n{"step"')
    assert lines.read() == [{"step": 1}]
    with path.open("a") as out:
        out.write(": 2}\n")
    assert lines.read() == [{"step": 1}, {"step": 2}]


def test_steps_that_a_restarted_trainer_repeats_count_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 1}, {"step": 2}, {"resumed_from": 1}, {"step": 2}, {"step": 3}]
    path.write_text("".join(json.dumps({"run_id": "r", **line}) + "\n" for line in lines))
    run = WatchedRun("name", "title", 9, "http://api", "http://server", True, path, tmp_path)
    assert [row["step"] for row in Sources(run, 0.0).rows()] == [1, 2, 3]


def test_the_token_rate_leaves_out_idle_time():
    rate = TokenRate()
    for now, total in ((0.0, 0), (1.0, 100), (2.0, 100), (3.0, 100)):
        rate.note(now, total)
    assert rate.per_s == 100.0
    rate.note(4.0, 0)  # a restarted server counts from zero
    rate.note(5.0, 200)
    assert rate.per_s == 0.7 * 100 + 0.3 * 200


def test_the_weight_version_of_either_engine_is_a_number():
    assert version_of({"weight_version": 3}) == 3
    assert version_of({"weight_version": "3"}) == 3
    assert version_of({"weight_version": "default"}) == 0
    assert version_of({"weight_version": "mine"}) is None
    assert version_of(None) is None
    assert ServingEngine("vllm") is ServingEngine.VLLM


def test_a_counter_of_vllm_is_the_sum_over_its_labels():
    text = (
        "# HELP vllm:generation_tokens_total Number of generation tokens\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 100.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="m"} 20.5\n'
        'vllm:generation_tokens_created{engine="0"} 7\n'
    )
    assert counter(text, "vllm:generation_tokens_total") == 120.5
    assert counter("", "vllm:generation_tokens_total") is None


def test_the_larger_of_two_mismatches_counts():
    assert largest({"a": 1e-5, "b": 2e-4}, "a", "b") == 2e-4
    assert largest({"a": None}, "a", "b") is None


def test_lines_of_a_file_that_a_restarted_trainer_replaced_are_read_anew(tmp_path):
    path, draft = tmp_path / "metrics.jsonl", tmp_path / "draft"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    lines = JsonLines(path)
    assert [row["step"] for row in lines.read()] == [1, 2]
    draft.write_text('{"step": 1}\n')
    draft.rename(path)
    assert [row["step"] for row in lines.read()] == [1]
