from __future__ import annotations

import json

from atroposlib.run_status.sources import (
    JsonLines,
    Sources,
    TokenRate,
    WatchedRun,
    dropped_groups,
    has_environment,
    largest,
    measures_of,
    newest_answers,
    seconds_left,
    verdict_of,
    version_of,
    warnings_of,
)


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


def test_answers_whose_text_was_not_read_are_left_out_and_a_missing_reward_is_not_0():
    rows = [{"reward": 1.0, "answer": "7"}, {"reward": 0.0, "answer": None}, {"answer": "8"}]
    assert newest_answers({"rows": rows}) == ((1.0, "7"), (None, "8"))
    assert newest_answers({}) == ()


def test_an_environment_lives_by_its_heartbeats_or_its_share():
    beat = {"role": "env", "age_s": 1.0}
    assert has_environment({"participants": [beat]})
    assert not has_environment({"participants": [{**beat, "details": {"ended": 1}}]})
    assert not has_environment({"participants": [{**beat, "age_s": 16.0}], "shares": []})
    share, nameless = {"env_id": 0, "asked": 0.5}, {"env_id": None, "asked": 0.5}
    assert has_environment({"participants": [], "shares": [share]})
    assert not has_environment({"shares": [{**share, "asked": 0.0}, nameless]})


def test_without_an_answer_the_api_is_unreachable():
    assert verdict_of(None)["state"] == "unreachable"
    assert verdict_of({"verdict": {"state": "healthy"}}) == {"state": "healthy"}


def test_warnings_are_the_findings_that_the_line_does_not_tell():
    findings = [
        {"key": "same-scores", "cause": "all same", "evidence": ["8 of 8"]},
        {"key": "mismatch", "cause": "logprobs differ", "evidence": ["0.4 nats"]},
    ]
    stuck = {"state": "stuck", "findings": findings}
    assert warnings_of(stuck) == ("logprobs differ: 0.4 nats",)
    assert len(warnings_of({**stuck, "state": "healthy"})) == 2


def test_the_measures_are_those_of_the_environment_and_the_entropy():
    row = {"env/solved": 0.25, "env/reward": 0.5, "env/turns": 1.0, "loss": 9.0}
    assert measures_of({**row, "entropy": 0.01523}) == "solved 0.25  turns 1  entropy 0.0152"
    assert measures_of({}) == ""


def test_the_time_left_is_that_of_the_steps_to_do_at_the_pace_of_the_last():
    rows = [{"step": n, "seconds_wait": 3.0, "seconds_train": 1.0} for n in (1, 2)]
    assert seconds_left(rows, 10) == 32.0
    assert seconds_left([], 10) is None


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
