"""Causes: which failures are equal, which are mistakes, when a run ends by one."""

from __future__ import annotations

import logging

import pytest

from atroposlib.envs.rollout import causes
from atroposlib.envs.rollout.causes import (
    FirstItems,
    IncompleteGroup,
    OnlyFailures,
    Repeats,
    cause_of,
    gather_probed,
    hopeless,
    mistake_of,
    remedy_of,
    returned_none,
)
from atroposlib.errors import (
    ConfigError,
    InferenceRefused,
    InferenceUnavailable,
    RolloutError,
    TokensMissing,
    boundary,
)


class ReadTimeout(Exception):
    """As HTTP clients name theirs."""


class StatusError(Exception):
    def __init__(self, status_code):
        self.status_code = status_code


def failure(cause, item="1"):
    try:
        with boundary("env", item, "rollout"):
            raise cause
    except RolloutError as error:
        return error


def chained(cause):
    outer = ValueError("the judge failed")
    outer.__cause__ = cause
    return failure(outer)


def test_causes_are_equal_but_for_numbers_and_quoted_values():
    one, other = failure(ValueError("no 'a' at 17")), failure(ValueError("no 'bc' at 3"), "2")
    assert cause_of(one) == cause_of(other)
    assert cause_of(one) != cause_of(failure(ValueError("no more at 17")))
    assert cause_of(one) != cause_of(failure(KeyError("no 'a' at 17")))
    with boundary_line() as elsewhere:
        raise ValueError("no 'a' at 17")
    assert cause_of(one) != cause_of(elsewhere[0])


class boundary_line:
    def __enter__(self):
        self.found = []
        return self.found

    def __exit__(self, kind, error, trace):
        self.found.append(RolloutError("env", "1", "rollout", error))
        return True


@pytest.mark.parametrize(
    ("error", "mistake"),
    [
        (failure(ZeroDivisionError()), True),
        (failure(FileNotFoundError("notes.txt")), True),
        (failure(NotImplementedError()), True),
        (ConfigError("n"), True),
        (InferenceRefused(404, "Not Found"), True),
        (TokensMissing("no ids"), True),
        (failure(StatusError(401)), True),
        (InferenceUnavailable("status 503"), False),
        (failure(ConnectionRefusedError()), False),
        (failure(TimeoutError()), False),
        (failure(ReadTimeout()), False),
        (failure(StatusError(503)), False),
        (failure(StatusError(429)), False),
        (chained(ConnectionResetError()), False),
        (IncompleteGroup("3 of 4 samples have a score"), False),
    ],
)
def test_outages_are_no_mistakes(error, mistake):
    assert (mistake_of(error) is not None) is mistake


def test_a_run_ends_if_both_first_items_fail_by_one_mistake():
    probe = FirstItems()
    assert probe.end(0, failure(ValueError("bad"))) is None and not probe.over
    ended = probe.end(1, failure(ValueError("bad")))
    assert isinstance(ended, OnlyFailures)
    what, fix = str(ended).splitlines()
    assert "test_causes.py" in what and fix.startswith("all samples of the first 2 items")
    assert ended.after_log.startswith("all samples of the first 2 items failed by this: ")
    assert not hopeless(returned_none(None, 2)).after_log  # its cause is not logged


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failure(ValueError("bad")), None),
        (None, failure(ValueError("bad"))),
        (failure(ValueError("bad")), failure(ValueError("worse"))),
        (InferenceUnavailable("down"), InferenceUnavailable("down")),
        (failure(ValueError("bad")), IncompleteGroup("1 of 2 samples have a score")),
    ],
)
def test_a_run_goes_on_if_they_end_in_another_way(first, second):
    probe = FirstItems()
    assert probe.end(0, first) is None and probe.end(1, second) is None
    assert probe.over and probe.end(2, failure(ValueError("bad"))) is None


def test_a_retry_does_not_count_as_another_item():
    probe = FirstItems()
    for _ in range(3):
        assert probe.end(0, failure(ValueError("bad"))) is None
    assert not probe.over


def test_the_first_failure_of_a_cause_is_logged_and_the_others_counted(caplog):
    seconds = iter(range(1000))
    repeats = Repeats(clock=lambda: next(seconds))
    for i in range(70):
        repeats.count_error(failure(ValueError(f"bad {i}")))
    repeats.count_error(failure(KeyError("other")))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines[1:3]] == [
        "31 times so far",
        "61 times so far",
    ]
    assert len(lines) == 4 and "KeyError" in lines[3]
    assert all(record.exc_info is None for record in caplog.records)


def test_the_traceback_is_logged_at_the_level_debug(caplog):
    with caplog.at_level(logging.DEBUG):
        Repeats().count_error(failure(ValueError("bad")))
    assert "Traceback" in caplog.text and "raise cause" in caplog.text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (InferenceRefused(401, "key"), "--openai.api_key"),
        (InferenceRefused(404, "Not Found"), "atropos-infer --model"),
        (InferenceRefused(400, "temperature"), "reply"),
        (returned_none(None, 4), "return"),
        (failure(ValueError("bad")), "correct it"),
    ],
)
def test_every_mistake_has_a_remedy(error, says):
    assert says in remedy_of(error)


async def test_the_progress_of_an_evaluation_is_logged(caplog, monkeypatch):
    async def work(item):
        return item

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(causes, "PROGRESS_S", 0.0)
    await gather_probed("abc", lambda item: item, work, lambda result: None, 8)
    first, *_, last = caplog.messages
    assert first == "evaluation of 3 samples, 8 at once"
    assert last == "evaluation: 3 of 3 samples finished"


async def test_the_first_items_are_drawn_before_the_others():
    drawn = []

    async def work(item):
        drawn.append(item)
        return failure(ValueError("bad")) if item in "ab" else item

    def error_of(result):
        return result if isinstance(result, RolloutError) else None

    results = await gather_probed("ccaabb", lambda item: item, work, error_of, 8)
    assert results[:2] == ["c", "c"] and len(results) == 6
    drawn.clear()
    with pytest.raises(OnlyFailures):
        await gather_probed("aabbccc", lambda item: item, work, error_of, 8)
    assert drawn == ["a", "a", "b", "b"]
