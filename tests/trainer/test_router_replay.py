"""Router replay in the trainer: every layout, gradients included, and what it is for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.wire.routing import experts_entry
from example_trainer.model import loading, probing
from example_trainer.model.policy import ModelFacts
from tests.inference.helpers import generate, request
from tests.trainer.architectures import write
from tests.trainer.families import family_of
from tests.trainer.layouts import assert_equal, our_step, reference_step
from tests.trainer.rows import BRANCHING, row
from tests.utils.models.forced_experts import WEIGHTS, forced, own_experts

LAYOUTS = {
    "shared": {},
    "packed": {"share_prefixes": False},
    "padded": {"packing": "padded"},
    "checkpointed": {"gradient_checkpointing": True},
}


@pytest.fixture(scope="module", params=WEIGHTS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def directory(name, tmp_path_factory):
    return write(family_of(name), tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def reference(directory):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")


@pytest.fixture
def load(config, directory):
    def made(**settings):
        policy = loading.load_policy(config(model_name=str(directory), **settings))
        policy.attention_crossover = float("inf")
        return policy

    return made


def with_experts(rows, experts_of):
    """The rows with the experts of every token but the last, as servers report them."""
    return [
        replace(one, routed_experts=experts_entry(experts_of(i, one.tokens)[:-1]))
        for i, one in enumerate(rows)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replay_of_the_trainer_s_own_routing_changes_nothing(load, reference, layout):
    own = our_step(load(**LAYOUTS[layout]), BRANCHING)
    rows = with_experts(BRANCHING, lambda i, tokens: own_experts(reference, tokens))
    replayed = our_step(load(router_replay=True, **LAYOUTS[layout]), rows)
    assert replayed[0] == own[0]
    for parameter, gradient in own[1].items():
        assert torch.equal(replayed[1][parameter], gradient), parameter


def other_experts(i, tokens):
    """Two of four experts in each layer, of which rows with one beginning have others."""
    layers = np.arange(2)[None, :, None]
    first = (np.array(tokens)[:, None, None] + layers + i % 2) % 4
    return np.concatenate([first, (first + 1) % 4], -1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replay_of_another_routing_is_a_step_with_those_experts_forced(
    load, reference, name, layout
):
    layers = 1 if name == "deepseek-v3" else 2
    rows = with_experts(BRANCHING, lambda i, tokens: other_experts(i, tokens)[:, :layers])
    longest = max(len(one.tokens) for one in rows)
    table = np.zeros((len(rows), longest, layers, 2), int) + [0, 1]
    for i, one in enumerate(rows):
        table[i, : len(one.tokens)] = other_experts(i, one.tokens)[:, :layers]
    with forced(reference, name, table.reshape(-1, layers, 2)):
        expected = reference_step(reference, rows)
    *ours, plans = our_step(load(router_replay=True, **LAYOUTS[layout]), rows)
    assert_equal(ours, expected)
    if layout == "shared":  # a prefix is shared by the rows that were routed alike
        distinct = sum(plan.length for plan in plans)
        plain = sum(plan.length for plan in load().plan(BRANCHING))
        assert plain < distinct < sum(len(one.tokens) for one in rows)


def test_rows_without_experts_are_trained_as_without_a_replay(load):
    assert our_step(load(router_replay=True), BRANCHING)[0] == our_step(load(), BRANCHING)[0]


def test_experts_of_another_model_end_the_step(load):
    foreign = replace(BRANCHING[0], routed_experts=experts_entry(np.zeros((3, 7, 2), int)))
    policy = load(router_replay=True)
    with pytest.raises(InvalidGroup, match="routed_experts"):
        policy.plan([foreign])
    assert load().plan([foreign])  # without the setting the field is carried and ignored


def test_a_dense_model_is_refused(config):
    with pytest.raises(ConfigError, match="router_replay"):
        loading.load_policy(config(router_replay=True))


def mean_difference(policy, rows):
    """Mean |trainer - sampler| of the trained tokens, in nats."""
    ours = np.concatenate(policy.trained_logprobs(rows))
    theirs = [one.behaviour_logprobs[j] for one in rows for j in one.trained]
    return float(np.abs(ours - theirs).mean())


@pytest.mark.parametrize(
    ("case", "share"), [("bfloat16 server", 0.95), ("perturbed routers", 0.8)]
)
def test_replay_brings_the_trainer_closer_to_a_sampler_that_routes_otherwise(
    load, directory, case, share
):
    served = load_model(str(directory), dtype="bf16" if case == "bfloat16 server" else "fp32")
    if case == "perturbed routers":
        torch.manual_seed(0)
        for router in served.routers:
            router.module.weight.data += 0.02 * torch.randn_like(router.module.weight)
    engine = Engine(served, EngineLimits(), seed=0, num_threads=1)
    engine.start()
    prompts = [[5 + i, 9, 20 - i, 7] for i in range(8)]
    asked = [
        request(ids, n=2, max_tokens=40, routed_experts=True, ignore_eos=True)
        for ids in prompts
    ]
    try:
        results = generate(engine, *asked)
    finally:
        engine.close()
    rows = []
    for ids, result in zip(prompts, results):
        for output in result.outputs:
            made = row(ids, output.tokens, routed_experts=experts_entry(output.experts))
            logprobs = [1.0] * (len(ids) - 1) + output.logprobs
            rows.append(replace(made, behaviour_logprobs=logprobs))
    before = mean_difference(load(), rows)
    after = mean_difference(load(router_replay=True), rows)
    print(f"{case}: mean |trainer - sampler| {before:.4f} -> {after:.4f} nats")
    assert after < share * before


def test_what_rank_0_measured_sets_up_the_replay_of_the_others(
    load, config, directory, reference
):
    rows = with_experts(
        BRANCHING, lambda i, tokens: own_experts(reference, tokens)[:, :, ::-1]
    )
    first, other = load(), load()
    settings = config(model_name=str(directory), router_replay=True)
    shared = json.loads(json.dumps(asdict(probing.probe(first, settings))))
    other.adopt(ModelFacts(**shared))
    assert other.module.replay is not None
    assert other.trained_logprobs(rows) == load().trained_logprobs(BRANCHING)


@pytest.mark.alone
def test_two_ranks_that_hold_half_of_the_model_each_replay_as_one_does(ranks):
    for found in ranks:
        from_whole, from_own_experts = found["replayed"]
        assert from_whole < 1e-5 and from_own_experts > 0.1
