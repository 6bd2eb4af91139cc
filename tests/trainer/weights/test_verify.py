from __future__ import annotations

import copy

import pytest
import torch

from atroposlib.errors import StaleWeights
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.scoring import pad_to_tensor
from example_trainer.weights import verify
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.mismatch import sampled_mismatch
from example_trainer.weights.verify import SamplerCheck
from tests.trainer.rows import row
from tests.trainer.weights.support.fleets import change
from tests.trainer.weights.support.in_process_engine import SEQUENCES, InProcessEngine, head_of


def test_equal_weights_agree(policy, server):
    found = verify.check_servers(policy, [server], SEQUENCES, 3, Agreement.of("float32", 1e-4))
    assert found.tokens == 5 + 2 and found.max < 1e-5


def test_an_output_head_that_was_not_refreshed_is_found(policy, server):
    stale = head_of(server).weight.detach().clone()
    change(policy)
    server.policy.model.load_state_dict(policy.model.state_dict())
    head_of(server).weight = torch.nn.Parameter(stale)
    with pytest.raises(StaleWeights) as stopped:
        verify.check_servers(policy, [server], SEQUENCES, 3, Agreement.of("float32"))
    for part in ("the-server", "version '3'", "7 of 7 tokens", "tied output head"):
        assert part in str(stopped.value)


def test_stale_server_in_a_fleet_is_named_in_the_error(policy, server):
    other = InProcessEngine(copy.deepcopy(policy))
    other.url = "the-stale-one"
    with torch.no_grad():
        head_of(other).weight.mul_(1.1)
    with pytest.raises(StaleWeights, match="the-stale-one"):
        verify.check_servers(policy, [server, other], SEQUENCES, 3, Agreement.of("float32"))


def test_a_server_that_keeps_its_weights_is_refused_where_a_step_moves_less_than_the_tolerance(
    policy, server
):
    agreement = Agreement.of("float32")
    rows = [[6 + (5 * i + j) % 20 for j in range(30)] for i in range(8)]
    verify.check_servers(policy, [server], rows[:4], 1, agreement)
    assert agreement.before.sequences == rows[:4]
    before = agreement.before
    change(policy, scale=1e-5)
    current = InProcessEngine(copy.deepcopy(policy))
    found = verify.check_servers(policy, [current], rows[4:], 2, agreement, before=before)
    with pytest.raises(StaleWeights, match=r"1\d\d of 116 tokens are nearer") as stopped:
        verify.check_servers(policy, [current, server], rows[4:], 2, agreement, before=before)
    assert found.max < agreement.tolerance
    assert "whose weights it still holds" in str(stopped.value)
    assert "as small as rounding" not in str(stopped.value)


def test_logprobs_without_temperature_are_rejected_at_the_start(policy, server):
    assert verify.check_engines(policy, [server], Agreement.of("float32")).max < 1e-3
    server.scales = False
    with pytest.raises(StaleWeights, match="processed_logprobs"):
        verify.check_engines(policy, [server], Agreement.of("float32"))


def test_another_tokenizer_is_refused_at_the_start(policy, server):
    server.token_ids = lambda text: [1, 2, 3]
    with pytest.raises(StaleWeights, match="another tokenizer"):
        verify.check_engines(policy, [server], Agreement.of("float32"))


def test_rows_of_different_groups_are_checked_first():
    rows = [row([1], [2, 3, 4], "a"), row([1], [2, 3], "a"), row([1], [5], "b")]
    rows.append(rows[0])
    assert verify.choose_rows(rows, 2) == [[1, 2, 3, 4], [1, 5]]
    assert len(verify.choose_rows(rows, 9)) == 3


def test_only_tokens_of_the_version_held_here_are_compared(policy):
    exact = policy.logprobs_of([[6, 7, 8]])[0]
    rows = [
        row([6], [7, 8], behaviour_logprobs=[exact[0], -30.0], versions=[4, 3]),
        row([6], [7, 8], behaviour_logprobs=[exact[0] + 0.5, -30.0], versions=[4, -1]),
    ]
    (plan,) = policy.plan(rows)
    sampled = pad_to_tensor(plan, [r.behaviour_logprobs for r in rows], policy.device)
    versions = pad_to_tensor(plan, [r.versions for r in rows], policy.device)
    found = sampled_mismatch(policy.score(plan), sampled, versions, 4, tolerance=1e-3)
    assert (found.tokens, found.beyond) == (2, 1)
    assert found.max == pytest.approx(0.5, abs=1e-5)
    for one in rows:
        one.spans.append({"start": 1, "end": 3, "temperature": 1.0, "top_p": 0.9})
    check = SamplerCheck.of(rows, TrainerState("run", 4, 4, None), Agreement.of("float32"))
    with pytest.raises(
        StaleWeights, match="not acked. The tokens were sampled with top_p 0.9"
    ):
        check.require(policy, found)
