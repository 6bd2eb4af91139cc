"""Errors name the place where user code failed, and are never numbers."""

from __future__ import annotations

import json
import re

import pytest

from atroposlib.errors import InferenceUnavailable, RolloutError, boundary, definition_of


def test_an_exception_of_user_code_becomes_an_error_that_names_env_item_and_stage() -> None:
    with pytest.raises(RolloutError) as failure:
        with boundary("gsm8k", 17, "reward"):
            1 / 0
    assert re.fullmatch(
        r"tests/test_errors.py:\d+: ZeroDivisionError: division by zero, in `1 / 0` "
        r"\(gsm8k: reward failed on item 17\)",
        str(failure.value),
    )


def test_the_line_is_the_last_of_the_user_and_not_of_a_library() -> None:
    with pytest.raises(
        RolloutError, match=r"test_errors.py:\d+: JSONDecodeError: .*in `json.l"
    ):
        with boundary("gsm8k", None, "setup"):
            json.loads("{")


def wrong(
    task: object,
) -> None: ...


def test_without_a_line_of_the_user_the_function_to_blame_is_named() -> None:
    cause = ValueError("the score\nis nan")  # never raised, so it has no traceback
    error = RolloutError("gsm8k", "17", "reward", cause, definition_of(wrong))
    assert "ValueError: the score is nan, in `def wrong(` (gsm8k: reward failed" in str(error)
    assert str(RolloutError("e", "1", "reward", cause)) == (
        "e: reward failed on item 1: ValueError: the score is nan"
    )
    assert definition_of(json.loads) is None and definition_of(None) is None


def test_the_cause_is_kept_for_the_traceback() -> None:
    with pytest.raises(RolloutError) as failure:
        with boundary("gsm8k", 17, "reward"):
            raise KeyError("answer")
    assert isinstance(failure.value.__cause__, KeyError)


def test_errors_of_the_package_pass_through_unchanged() -> None:
    with pytest.raises(InferenceUnavailable):
        with boundary("gsm8k", 17, "rollout"):
            raise InferenceUnavailable("no server answered within 30 s")


def test_cancellation_is_not_an_error_of_user_code() -> None:
    with pytest.raises(KeyboardInterrupt):
        with boundary("gsm8k", 17, "rollout"):
            raise KeyboardInterrupt
