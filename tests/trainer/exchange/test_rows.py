"""Rows as the samples of other trainers, by hand-computed values."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.wire import MASKED, MASKED_LOGPROB, ScoredData
from example_trainer.data.rows import to_rows
from example_trainer.exchange.rows import (
    prime_rl_sample,
    skyrl_output,
    slime_sample,
    tinker_datum,
    trl_fields,
    two_parts_of,
    verl_output,
)

# Two turns: 5 6 are the prompt, 7 8 the first reply, 9 of the environment, 4 the second reply.
TOKENS = [5, 6, 7, 8, 9, 4]
MASKS = [MASKED, MASKED, 7, 8, MASKED, 4]
LOGPROBS = [MASKED_LOGPROB, MASKED_LOGPROB, -0.1, -0.2, MASKED_LOGPROB, -0.3]


def group(**more):
    fields = {
        "tokens": [TOKENS, TOKENS],
        "masks": [MASKS, MASKS],
        "scores": [1.0, 0.0],
        "inference_logprobs": [LOGPROBS, LOGPROBS],
        "generation_params": {"temperature": 0.5},
        "group_id": "q",
        "env_id": 3,
    }
    return ScoredData(**{**fields, **more})


def fields(*groups, temperature=0.5, max_tokens=64, group_size=2):
    return trl_fields(groups, to_rows(groups, max_tokens), group_size, temperature)


def test_the_completion_begins_with_the_first_trained_token_and_masks_those_of_the_environment():
    sample = two_parts_of(to_rows([group()], 64).rows[0])
    assert (sample.prompt, sample.completion) == ([5, 6], [7, 8, 9, 4])
    assert (sample.mask, sample.logprobs) == ([1, 1, 0, 1], [-0.1, -0.2, 0.0, -0.3])


def test_a_failed_rollout_has_no_score_and_no_trained_token():
    found = fields(group(outcomes=["ok", "env_error"]))
    assert found["recorded_score"] == [1.0, None]
    assert found["env_mask"] == [[1, 1, 0, 1], [0]]
    assert found["completion_ids"] == [[7, 8, 9, 4], [4]]


def test_a_row_too_long_or_without_advantage_counts_in_the_baseline_only():
    long = fields(group(), max_tokens=5)
    assert long["recorded_score"] == [1.0, 0.0] and long["env_mask"] == [[0], [0]]
    zero = fields(group(overrides=[{"set_advantage_to_zero": True}, {}]))
    assert zero["recorded_score"] == [1.0, 0.0]
    assert zero["env_mask"] == [[0, 0, 0, 0], [1, 1, 0, 1]]


@pytest.mark.parametrize(
    ("more", "settings", "error", "message"),
    [
        ({}, {"group_size": 4}, ConfigError, "a group of 2 sequences came from environment 3"),
        ({}, {"temperature": 1.0}, ConfigError, "sampled at temperature 0.5"),
        ({"advantages": [[0.5] * 6] * 2}, {}, InvalidGroup, "TRL computes its own"),
    ],
)
def test_what_trl_would_train_otherwise_is_refused(more, settings, error, message):
    with pytest.raises(error, match=message):
        fields(group(**more), **settings)


def test_records_of_other_trainers_are_those_of_the_row():
    versions = [[-1, -1, 4, 4, -1, 5]] * 2
    row = to_rows([group(versions=versions, finish_reasons=["length", "stop"])], 64).rows[0]
    assert verl_output(row) == {
        "prompt_ids": [5, 6],
        "response_ids": [7, 8, 9, 4],
        "response_mask": [1, 1, 0, 1],
        "response_logprobs": [-0.1, -0.2, 0.0, -0.3],
        "reward_score": 1.0,
        "num_turns": 4,  # question, reply, environment, reply
        "metrics": {},
        "extra_fields": {
            "group": "3/q",
            "versions": [4, 5],
            "min_global_steps": 4,
            "max_global_steps": 5,
        },
    }
    assert slime_sample(row, 7, 9) == {
        "group_index": 7,
        "index": 9,
        "tokens": TOKENS,
        "response_length": 4,
        "reward": 1.0,
        "loss_mask": [1, 1, 0, 1],
        "rollout_log_probs": [-0.1, -0.2, 0.0, -0.3],
        "weight_versions": ["4", "5"],
        "status": "truncated",
        "metadata": {"group": "3/q"},
    }
    assert skyrl_output([row]) == {
        "prompt_token_ids": [[5, 6]],
        "response_ids": [[7, 8, 9, 4]],
        "rewards": [1.0],
        "loss_masks": [[1, 1, 0, 1]],
        "stop_reasons": ["length"],
        "rollout_metrics": None,
        "rollout_logprobs": [[-0.1, -0.2, 0.0, -0.3]],
    }
    mask = [False, False, True, True, False, True]
    assert prime_rl_sample(row, "calc", 0.5) == {
        "token_ids": TOKENS,
        "mask": mask,
        "logprobs": [0.0, 0.0, -0.1, -0.2, 0.0, -0.3],
        "temperatures": [1.0, 1.0, 0.5, 0.5, 1.0, 0.5],
        "env_name": "calc",
        "advantages": [{"loss": "rl", "values": [0.0, 0.0, 0.5, 0.5, 0.0, 0.5], "mask": mask}],
        "reward": 1.0,
    }
    assert tinker_datum(row, 0.5) == {
        "model_input": TOKENS[:-1],
        "loss_fn_inputs": {
            "target_tokens": TOKENS[1:],
            "logprobs": [0.0, -0.1, -0.2, 0.0, -0.3],
            "advantages": [0.0, 0.5, 0.5, 0.0, 0.5],
        },
    }
