"""Logprobs of sampled tokens equal a fresh forward pass for any batch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from atroposlib.inference.engine.engine import PauseMode
from atroposlib.inference.engine.served_model import load_model
from atroposlib.utils.models.routers import chosen_experts, outputs_of
from tests.inference.helpers import generate, request, worst_difference

EXACT = 1e-4  # nats, fp32


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(5, 40) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_equal_a_fresh_forward_for_mixed_lengths_and_n(
    engine, reference, temperature
):
    requests = [
        request(ids, n=1 + i % 4, temperature=temperature, max_tokens=1 + 5 * (i % 3))
        for i, ids in enumerate(prompts(12))
    ]
    results = generate(engine, *requests)
    assert worst_difference(reference, requests, results) < EXACT


def test_logprobs_stay_exact_under_top_p_and_top_k(engine, reference):
    # they are of the whole distribution: truncation limits the draws, not their logprobs
    requests = [request(ids, n=3, top_p=0.5, top_k=7, max_tokens=6) for ids in prompts(4)]
    assert worst_difference(reference, requests, generate(engine, *requests)) < EXACT


def test_joins_and_leaves_do_not_disturb_running_rows(make_engine, reference):
    # 5 rows for 30 sequences of very different lengths: rows move and are reused
    engine = make_engine(max_batch=5)
    requests = [
        request(ids, n=3, max_tokens=1 + 7 * (i % 4), ignore_eos=True)
        for i, ids in enumerate(prompts(10, seed=1))
    ]
    results = generate(engine, *requests)
    assert worst_difference(reference, requests, results) < EXACT
    lengths = [{len(output.tokens) for output in result.outputs} for result in results]
    assert lengths == [{1 + 7 * (i % 4)} for i in range(10)]


def test_memory_that_is_resized_keeps_running_rows_exact(make_engine, reference):
    # the second request needs more columns than the first allocated, while that runs
    engine = make_engine(max_batch=8, kv_budget_tokens=1024)
    first = request([5, 6, 7], max_tokens=55, ignore_eos=True)
    wide = [request([8] * 60, max_tokens=100, ignore_eos=True) for _ in range(4)]
    results = generate(engine, first, *wide)
    assert worst_difference(reference, [first, *wide], results) < EXACT


def test_one_prefill_serves_all_samples_and_all_equal_prompts(make_engine):
    engine = make_engine()
    same = [request([5, 6, 7, 8], n=8, max_tokens=2, ignore_eos=True) for _ in range(3)]
    engine.pause(PauseMode.WAIT)
    for one in same:
        engine.submit(one)
    engine.resume()
    for one in same:
        one.future.result(600)
    assert engine.counters.prompt_tokens == 4 * 24
    assert engine.counters.prefilled_tokens == 4


def test_greedy_batched_output_equals_plain_generation_of_each_prompt(engine, reference):
    batch = prompts(8, seed=2)
    results = generate(
        engine, *[request(ids, temperature=0.0, max_tokens=12) for ids in batch]
    )
    for ids, result in zip(batch, results):
        alone = reference.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
        )
        assert result.outputs[0].tokens == alone[0, len(ids) :].tolist()


def test_a_seeded_request_samples_the_same_tokens_in_any_batch(make_engine):
    wanted = [9, 10, 11]
    alone = generate(make_engine(), request(wanted, n=2, seed=7, max_tokens=8))[0]
    crowd = [request(ids, n=3, max_tokens=5) for ids in prompts(6, seed=3)]
    seeded = request(wanted, n=2, seed=7, max_tokens=8)
    together = generate(make_engine(max_batch=7), *crowd[:3], seeded, *crowd[3:])[3]
    assert [o.tokens for o in together.outputs] == [o.tokens for o in alone.outputs]
    assert alone.outputs[0].tokens != alone.outputs[1].tokens


def test_scored_prompts_equal_a_fresh_forward(engine, reference):
    batch = prompts(5, seed=4)
    requests = []
    for ids in batch:
        one = request(ids, max_tokens=0, temperature=0.0)
        one.prompt_logprobs = 2
        requests.append(one)
    for ids, result in zip(batch, generate(engine, *requests)):
        entries = result.prompt_logprobs
        with torch.inference_mode():
            fresh = reference.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        assert entries[0] is None and len(entries) == len(ids)
        for position, entry in enumerate(entries[1:], 1):
            actual = ids[position]
            assert next(iter(entry)) == actual
            best = fresh[position - 1].topk(2).indices.tolist()
            assert set(entry) == {actual, *best}
            for token, logprob in entry.items():
                assert logprob == pytest.approx(float(fresh[position - 1, token]), abs=EXACT)


def test_recorded_experts_are_those_of_a_fresh_forward_of_the_whole_sequence(
    make_engine, moe_dir
):
    reference = load_model(str(moe_dir))
    # Rows move and are reused, prompts are shared, and every second request asks.
    requests = [
        request(ids, n=1 + i % 3, max_tokens=1 + 4 * (i % 3), routed_experts=i % 2 == 0)
        for i, ids in enumerate(prompts(8))
    ]
    engine = make_engine(moe_dir, max_batch=5)
    for one, result in zip(requests, generate(engine, *requests)):
        for output in result.outputs:
            if not one.params.routed_experts:
                assert output.experts is None
                continue
            ids = torch.tensor([one.prompt_ids + output.tokens[:-1]])
            modules = [router.module for router in reference.routers]
            with torch.inference_mode(), outputs_of(modules) as routed:
                reference.model(ids, use_cache=False)
            (expected,) = chosen_experts(routed, 1)
            assert sorted_experts(output.experts) == sorted_experts(expected)


def sorted_experts(experts):
    return np.sort(experts, -1).tolist()
