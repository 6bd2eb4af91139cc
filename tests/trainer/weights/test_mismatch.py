from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from peft.helpers import rescale_adapter_scale

from atroposlib.errors import StaleWeights
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.model.policy import Scores
from example_trainer.weights import verify
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.mismatch import (
    TRIED_ROWS,
    Mismatch,
    about_temperature,
    mismatch_of,
    reduce_mismatch,
    sampled_mismatch,
    sampled_temperature,
)
from tests.trainer.rows import at, row
from tests.trainer.weights.support.in_process_engine import SEQUENCES, InProcessEngine, head_of


def test_missing_adapter_on_a_server_is_diagnosed(config):
    policy = loading.load_policy(config(lora=True), Ranks.single())
    server = InProcessEngine(copy.deepcopy(policy))
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.1 * torch.randn_like(weight))
    with pytest.raises(StaleWeights, match="Found: The adapter is missing"):
        verify.check_servers(policy, [server], SEQUENCES, 3, Agreement.of("float32"))
    before = policy.logprobs_of(SEQUENCES)
    with rescale_adapter_scale(policy.model, 0.0):
        assert policy.logprobs_of(SEQUENCES) == server.policy.logprobs_of(SEQUENCES)
    assert policy.logprobs_of(SEQUENCES) == before


def test_different_precision_and_version_are_diagnosed(policy, server):
    server.says_dtype = "bfloat16"
    with torch.no_grad():
        head_of(server).weight.mul_(1.05)
    with pytest.raises(StaleWeights) as stopped:
        verify.check_servers(policy, [server], SEQUENCES, 4, Agreement.of("float32"))
    assert "Found: It computes in bfloat16, the trainer in float32" in str(stopped.value)
    assert "Found: It names version 3, not 4" in str(stopped.value)


def test_a_nan_or_a_missing_token_is_beyond_every_tolerance():
    assert mismatch_of([-1.0, -2.0], [-1.0, float("nan")], 1e9).beyond == 1
    assert mismatch_of([-1.0, -2.0], [-1.0], 1e9).beyond == 1


def test_only_tokens_of_the_version_held_here_are_compared():
    scores = Scores(
        logprobs=torch.tensor([[-1.0, -1.0, -1.0]]),
        entropy=torch.zeros(1, 3),
        mask=torch.tensor([[True, True, True]]),
    )
    behaviour, versions = torch.tensor([[-1.5, -1.1, -9.0]]), torch.tensor([[4, 4, 3]])
    found = sampled_mismatch(scores, behaviour, versions, 4, tolerance=0.2)
    assert (found.tokens, found.beyond) == (2, 1)
    assert (found.total, found.max) == (pytest.approx(0.6), pytest.approx(0.5))


def sampled_by(policy, temperature, named, versions=4):
    """Rows that ``policy`` scores at one temperature, and that name another."""
    rows = [row([5, 6], [7 + i, 8, 9]) for i in range(6)]
    scored = policy.trained_logprobs([at(temperature, one) for one in rows])
    return [
        replace(
            at(named, one),
            behaviour_logprobs=[1.0, *logprobs],
            versions=[-1] + [versions] * 3,
        )
        for one, logprobs in zip(rows, scored)
    ]


@pytest.mark.parametrize(("temperature", "named"), [(0.7, 1.0), (1.0, 0.5), (1.35, 1.0)])
def test_the_temperature_of_sampled_tokens_is_found_by_trying(policy, temperature, named):
    rows = sampled_by(policy, temperature, named)
    found, tried = sampled_temperature(policy, rows, 4)
    assert found == temperature and len(tried) == TRIED_ROWS
    assert f"at temperature {temperature:g}, and their rows name {named:g}" in (
        about_temperature(found, tried)
    )


def test_no_temperature_is_named_where_none_explains_the_difference(policy):
    rows = sampled_by(policy, 1.0, 1.0)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.add_(
            torch.randn_like(policy.model.get_output_embeddings().weight) * 0.05
        )
    assert sampled_temperature(policy, rows, 4)[0] is None


def test_mismatch_of_a_single_rank_needs_no_reduction():
    own = Mismatch(tokens=3, total=0.5, max=0.25, beyond=1)
    assert reduce_mismatch(own, Ranks.single()) is own
