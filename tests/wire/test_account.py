"""Reports of the balance sheet: what the API accepts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from atroposlib.wire.account import AccountCount, AccountReport, discarded, dropped

COUNT = {"version": 3, "state": "dropped/env_error", "tokens": 12, "samples": 1}
REPORT = {"env_id": 0, "instance": "a", "sequence": 1, "counts": [COUNT]}


def test_states_are_a_word_and_a_reason():
    assert (dropped("short"), discarded("late")) == ("dropped/short", "discarded/late")
    assert AccountReport(**REPORT).counts[0].state == dropped("env_error")


@pytest.mark.parametrize(
    "wrong", [{"state": "a/b/c"}, {"state": "<b>"}, {"version": -3}, {"more": 1}]
)
def test_a_counter_of_another_form_is_refused(wrong):
    with pytest.raises(ValidationError):
        AccountCount(**{**COUNT, **wrong})
