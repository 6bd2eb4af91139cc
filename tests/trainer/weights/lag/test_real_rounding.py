"""bfloat16 between a real server and a real trainer, of a model with logits of real size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from atroposlib.inference.engine.core import EngineCore, EngineLimits
from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.engine.weights import copy_tensors
from atroposlib.testing.tiny import char_tokenizer
from example_trainer.data.rows import at_trained
from example_trainer.model import loading
from example_trainer.settings.batch import LoadSettings
from example_trainer.weights.agreement import Agreement, Tokens
from example_trainer.weights.lag import ScoredRows, lag_of
from example_trainer.weights.mismatch import Mismatch, mismatch_of
from tests.trainer.rows import row


@pytest.fixture(scope="module")
def peaked(tmp_path_factory):
    """A model whose logits are as large as those of a trained one; on random ones of standard
    deviation 0.02 rounding is fifty times smaller."""
    path = tmp_path_factory.mktemp("peaked")
    tokenizer = char_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=3,
        pad_token_id=4,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@torch.inference_mode()
def sampled(served, seed):
    """Rows as the local server writes them, with its logprobs."""
    core = EngineCore(served, EngineLimits(), seed=seed, weight_version=0)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    requests = [
        GenerationRequest(prompt_ids=[5 + i, 9, 12], params=params, n=4) for i in range(4)
    ]
    for request in requests:
        core.add(request)
    while not all(request.future.done() for request in requests):
        core.step(True)
    rows = []
    for request in requests:
        for output in request.future.result().outputs:
            one = row(request.prompt_ids, output.tokens, reward=float(len(rows) % 2))
            logprobs = [0.0] * (len(request.prompt_ids) - 1) + output.logprobs
            rows.append(replace(one, behaviour_logprobs=logprobs))
    return rows


def apart(policy, rows):
    sampler = [at_trained(one, one.behaviour_logprobs) for one in rows]
    pairs = zip(policy.trained_logprobs(rows), sampler)
    return sum((mismatch_of(ours, theirs, 0.2) for ours, theirs in pairs), Mismatch())


@torch.inference_mode()
def scored(served, sequences):
    """Logprobs of given texts, as the local server returns them."""
    core = EngineCore(served, EngineLimits(), seed=0, weight_version=0)
    params = SamplingParams(max_tokens=0)
    requests = [
        GenerationRequest(prompt_ids=tokens, params=params, prompt_logprobs=0)
        for tokens in sequences
    ]
    for request in requests:
        core.add(request)
    core.score()
    return [
        [entry[token] for entry, token in zip(request.scored[1:], request.prompt_ids[1:])]
        for request in requests
    ]


@pytest.mark.parametrize(("learning_rate", "checks"), [(5e-4, 1), (5e-5, 2)])
def test_a_server_a_step_behind_is_refused_where_a_step_moves_no_more_than_twice_the_rounding(
    peaked, learning_rate, checks
):
    """At 5e-5 a step moves a token by 0.04 to 0.1 nats, and 0.02 nats are rounding."""
    now, behind = (load_model(peaked, device="cpu", dtype="bfloat16") for _ in range(2))
    settings = LoadSettings(
        model_name=peaked, device="cpu", dtype="bfloat16", batch_size=8, seq_len=64
    )
    policy, limits = loading.load_policy(settings), Agreement.of("bfloat16")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate)
    accepted = []
    for step in range(4):
        rows = sampled(now, step)
        sequences = [each.tokens for each in rows]
        before = ScoredRows(sequences, policy.logprobs_of(sequences))
        for plan in policy.plan(rows):
            scores = policy.score(plan)
            torch.autograd.backward(-(scores.logprobs * scores.mask).sum() / 100)
        optimizer.step()
        optimizer.zero_grad()
        new = policy.logprobs_of(sequences)
        copy_tensors(behind.model, now.model.state_dict())
        copy_tensors(
            now.model, {n: t.to(torch.bfloat16) for n, t in policy.model.state_dict().items()}
        )
        assert limits.judge_lag(lag_of(before, new, scored(now, sequences)), "now")
        lag = lag_of(before, new, scored(behind, sequences))
        accepted.append(limits.judge_lag(lag, "behind"))
    assert accepted.index(False) < checks


@pytest.mark.parametrize("seed", range(4))
def test_a_correct_server_is_accepted_and_one_a_step_or_five_behind_refused_by_two_batches(
    peaked, seed
):
    served = load_model(peaked, device="cpu", dtype="bfloat16")
    settings = LoadSettings(
        model_name=peaked, device="cpu", dtype="bfloat16", batch_size=8, seq_len=64
    )
    policy, limits = loading.load_policy(settings), Agreement.of("bfloat16")
    for batch in range(4):
        found = apart(policy, sampled(served, 10 * seed + batch))
        assert limits.judge(found, Tokens.SAMPLED)
    assert found.mean > 1e-3  # there is rounding to compare with
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4)
    for step in range(5):
        rows = sampled(served, 10 * seed + 5 + step)
        if step in (1, 4):
            batches = rows, sampled(served, 100 + seed)
            accepted = [limits.judge(apart(policy, one), Tokens.SAMPLED) for one in batches]
            assert not all(accepted)
        for plan in policy.plan(rows):
            scores = policy.score(plan)
            torch.autograd.backward(-(scores.logprobs * scores.mask).sum() / 100)
        optimizer.step()
        optimizer.zero_grad()
