"""The group record on the wire."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest
from pydantic import ValidationError

from atroposlib.wire import Registration, SampledSpan, ScoredData
from atroposlib.wire.messages import NEUTRAL_SAMPLING, cuts_in_force
from atroposlib.wire.status import AccountCount, AccountReport, discard_state, drop_state
from tests.wire.records import group


def test_every_original_key_is_present_on_the_wire_even_when_it_is_null() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(group()))
    assert encoded["ref_logprobs"] is None
    assert encoded["distill_token_ids"] is None
    assert encoded["group_overrides"] is None


def test_numbers_round_trip_exactly() -> None:
    original = group(inference_logprobs=[[1.0, 1.0, -0.1234567890123456], [1.0, 1.0, -1e-17]])
    assert msgspec.json.decode(msgspec.json.encode(original), type=ScoredData) == original


def test_a_registration_without_names_of_wandb_is_taken() -> None:
    """axolotl's plugin sends null for a name that its configuration leaves out."""
    sent = {"batch_size": 8, "max_token_len": 64, "checkpoint_dir": "", "num_steps": 4}
    sent |= {"save_checkpoint_interval": 1, "starting_step": 0}
    registration = Registration.model_validate(
        {**sent, "wandb_group": None, "wandb_project": None}
    )
    assert (registration.wandb_group, registration.wandb_project) == ("", "")


def test_a_span_has_the_sampling_parameters_of_the_table_and_no_other():
    of_call = {"start", "end", "constraints", "logprobs", "finish_reason", "seal"}
    assert set(get_type_hints(SampledSpan)) - of_call == set(NEUTRAL_SAMPLING)


def test_only_cuts_that_leave_tokens_out_are_in_force():
    assert cuts_in_force({"top_p": 1, "top_k": 0, "min_p": 0, "temperature": 2}) == {}
    assert cuts_in_force(NEUTRAL_SAMPLING) == {}
    in_force = {"top_p": 0.9, "top_k": 1, "min_p": 0.1}
    assert cuts_in_force({**in_force, "bad_words": ["no"]}) == in_force


COUNT = {"version": 3, "state": "dropped/env_error", "tokens": 12, "samples": 1}
REPORT = {"env_id": 0, "instance": "a", "sequence": 1, "counts": [COUNT]}


def test_states_are_a_word_and_a_reason():
    assert (drop_state("short"), discard_state("late")) == ("dropped/short", "discarded/late")
    assert AccountReport(**REPORT).counts[0].state == drop_state("env_error")


@pytest.mark.parametrize(
    "wrong", [{"state": "a/b/c"}, {"state": "<b>"}, {"version": -3}, {"more": 1}]
)
def test_a_counter_of_another_form_is_refused(wrong):
    with pytest.raises(ValidationError):
        AccountCount(**{**COUNT, **wrong})
