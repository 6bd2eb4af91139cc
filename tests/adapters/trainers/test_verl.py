"""Rows of the rollout API as the batch of verl's own agent loop, and verl's GRPO on it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from example_trainer.advantage import compute
from example_trainer.data.rows import to_rows
from example_trainer.exchange.rows import two_parts_of, verl_output
from tests.adapters.trainers.posted import MAX_TOKENS, all_groups, claimed
from tests.trainer.loss_batches import run, settings

PACKAGE = "verl"
pytestmark = pytest.mark.filterwarnings("default")  # of ray and tensordict
PROMPT, RESPONSE = 8, 40


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    groups = claimed(tmp_path_factory.mktemp("verl"), all_groups())
    return to_rows(groups, MAX_TOKENS).rows


@pytest.fixture(scope="module")
def worker():
    """verl's worker of agent loops, without the Ray actor and the servers that it would start."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    found = AgentLoopWorker.__new__(AgentLoopWorker)
    found.tokenizer, found.processor = char_tokenizer(ASCII_ALPHABET), None
    found.mm_processor_kwargs, found.reward_loop_worker_handles = None, None
    found.distillation_enabled = False
    found.rollout_config = SimpleNamespace(prompt_length=PROMPT, response_length=RESPONSE)
    return found


@pytest.fixture
async def batch(rows, worker):
    """The rows as one DataProto, padded and joined by verl."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    outputs = [
        await worker._agent_loop_postprocess(
            AgentLoopOutput(**verl_output(row)), False, raw_prompt=[{"role": "user"}]
        )
        for row in rows
    ]
    return worker._postprocess(outputs)


async def test_verl_joins_the_rows_with_tokens_masks_logprobs_and_scores(rows, batch):
    batch.check_consistency()
    assert len(batch) == len(rows) == 18
    for number, row in enumerate(rows):
        sample, found = two_parts_of(row), batch[number].batch
        prompt, response = len(sample.prompt), len(sample.completion)
        seen = found["attention_mask"].bool()
        assert found["input_ids"][seen].tolist() == row.tokens
        assert found["prompts"][PROMPT - prompt :].tolist() == sample.prompt
        assert found["responses"][:response].tolist() == sample.completion
        assert found["response_mask"].tolist() == sample.mask + [0] * (RESPONSE - response)
        logprobs = found["rollout_log_probs"][:response].tolist()
        assert logprobs == pytest.approx(sample.logprobs)
        assert float(found["rm_scores"].sum()) == row.reward
        assert float(found["rm_scores"][response - 1]) == row.reward
    trained = batch.batch["response_mask"].sum(-1).tolist()
    assert trained[2 + 4 + 1] == 0 and trained.count(0) == 1  # the override


async def test_verl_cuts_and_joins_the_batch_again(rows, batch):
    from verl.protocol import DataProto

    groups = batch.non_tensor_batch["group"]
    assert list(groups) == [row.group for row in rows]
    joined = DataProto.concat(batch.chunk(3))
    assert torch.equal(joined.batch["responses"], batch.batch["responses"])
    assert list(joined.non_tensor_batch["group"]) == list(groups)
    oldest = [min(row.versions[at] for at in row.trained) for row in rows]
    assert list(batch.non_tensor_batch["min_global_steps"]) == oldest


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo"])
async def test_grpo_of_verl_has_these_advantages(rows, batch, estimator):
    """verl divides by the deviation of a sample, this trainer by that of the group."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask, groups = batch.batch["response_mask"], batch.non_tensor_batch["group"]
    theirs, _ = compute_grpo_outcome_advantage(
        batch.batch["rm_scores"], mask, groups, 1e-9, estimator == "grpo"
    )
    cfg = settings(advantage=estimator, advantage_eps=0.0)
    ours = compute([row.reward for row in rows], [row.group for row in rows], cfg)
    for number, advantage in enumerate(ours):
        size = list(groups).count(groups[number])
        factor = math.sqrt((size - 1) / size) if estimator == "grpo" else 1.0
        wanted = advantage * factor * mask[number]
        assert theirs[number].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token-mean", "token-sum"])
async def test_the_loss_and_gradient_of_verl_are_these(batch, aggregation):
    from verl.trainer.ppo.core_algos import (
        compute_grpo_outcome_advantage,
        compute_policy_loss_vanilla,
    )
    from verl.workers.config import ActorConfig

    mask = batch.batch["response_mask"].double()
    old = batch.batch["rollout_log_probs"].double()
    noise = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1))
    new = (old + 0.5 * noise).requires_grad_()
    advantages, _ = compute_grpo_outcome_advantage(
        batch.batch["rm_scores"], mask, np.array(batch.non_tensor_batch["group"])
    )
    limits = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    actor = ActorConfig(
        strategy="fsdp",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_c=1.5,
        **limits,
    )
    theirs, _ = compute_policy_loss_vanilla(old, new, advantages, mask, aggregation, actor)
    (their_gradient,) = torch.autograd.grad(theirs, new)
    parts = {"logprobs": new, "proximal": old, "behaviour": old}
    parts |= {"advantages": advantages, "mask": mask}
    total, _ = run("grpo", parts, settings(clip_eps=0.2, clip_eps_high=0.28, dual_clip=1.5))
    ours = total / mask.sum() if aggregation == "token-mean" else total
    (gradient,) = torch.autograd.grad(ours, new)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    assert torch.allclose(gradient, their_gradient, atol=1e-6)
