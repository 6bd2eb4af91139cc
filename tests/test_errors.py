"""Errors name the place where user code failed, and are never numbers."""

from __future__ import annotations

import pytest

from atroposlib.errors import InferenceUnavailable, RolloutError, boundary


def test_an_exception_of_user_code_becomes_an_error_that_names_env_item_and_stage() -> None:
    with pytest.raises(RolloutError, match=r"gsm8k: reward failed on item 17: ZeroDivision"):
        with boundary("gsm8k", 17, "reward"):
            1 / 0


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
