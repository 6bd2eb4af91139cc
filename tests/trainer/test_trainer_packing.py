"""Packs that share prefixes give the losses and gradients of plain rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from example_trainer import model
from example_trainer.config import TrainingConfig
from example_trainer.packing import Pack, pack_rows, passes, plan_pass
from tests.trainer.rows import masked_row, row

EVERYTHING = {"max_tokens": 1000, "crossover": float("inf")}

# Same prompt, diverging at once, late, by being a prefix of another, and not at all.
BRANCHING = [
    row([5, 6, 7, 8], [10, 11, 12]),
    row([5, 6, 7, 8], [10, 11, 13, 14]),
    row([5, 6, 7, 8], [20]),
    row([5, 6, 7, 8], [10, 11]),
    row([5, 6, 7, 8], [10, 11, 12]),
    row([5, 6, 9], [10, 11, 12], temperature=0.7),
    row([30, 31], [32, 33, 34, 35, 36], group="h"),
]
MULTI_TURN = [
    masked_row([([5, 6], False), ([7, 8], True), ([9, 10, 11], False), ([12], True)]),
    masked_row([([5, 6], False), ([7, 8], True), ([9, 13], False), ([14, 15], True)]),
    masked_row([([5, 6], False), ([7, 16], True), ([9], False), ([17, 18], True)]),
]


def reference_logprobs(policy, rows):
    """(N,) by one plain forward of each row, without padding or packing."""
    found = []
    for one in rows:
        logits = policy.model(torch.tensor([one.tokens]), use_cache=False).logits[0].float()
        logprobs = torch.log_softmax(logits / one.temperature, -1)
        found += [logprobs[j, one.labels[j]] for j in one.trained]
    return torch.stack(found)


def packed_logprobs(policy, rows):
    found = {}
    for plan in policy.plan(rows):
        scores = policy.score(plan)
        for b, i in enumerate(plan.row_ids):
            found[i] = scores.logprobs[b, : len(rows[i].trained)]
    return torch.cat([found[i] for i in range(len(rows))])


def gradients(policy, logprobs, weights):
    policy.model.zero_grad()
    (logprobs * weights).sum().backward()
    return [p.grad.clone() for p in policy.parameters()]


@pytest.mark.parametrize("rows", [BRANCHING, MULTI_TURN], ids=["branching", "multi-turn"])
@pytest.mark.parametrize("per_pass", [1000, 24], ids=["one pass", "many passes"])
def test_packed_rows_give_the_logprobs_and_gradients_of_plain_rows(policy, rows, per_pass):
    policy.attention_crossover, policy.max_tokens_per_pass = float("inf"), per_pass
    torch.manual_seed(1)
    weights = torch.randn(sum(len(r.trained) for r in rows))
    plain = reference_logprobs(policy, rows)
    expected = gradients(policy, plain, weights)
    packed = packed_logprobs(policy, rows)
    found = gradients(policy, packed, weights)
    assert torch.allclose(packed, plain, atol=1e-5)
    for ours, theirs in zip(found, expected):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_entropy_is_that_of_the_distribution_at_the_rows_temperature(policy):
    one = row([5, 6], [7], temperature=0.5)
    (plan,) = policy.plan([one])
    found = policy.score(plan, entropy_grad=True).entropy
    logits = policy.model(torch.tensor([[5, 6, 7]]), use_cache=False).logits[0, 1]
    expected = torch.distributions.Categorical(logits=logits / 0.5).entropy()
    assert torch.allclose(found, expected.reshape(1, 1), atol=1e-5)
    assert found.requires_grad and not policy.score(plan).entropy.requires_grad


def test_logits_in_chunks_are_the_same_logits(policy, monkeypatch):
    (plan,) = policy.plan(MULTI_TURN)
    weights = torch.arange(float(torch.tensor(plan.shape).prod())).reshape(plan.shape)
    whole = policy.score(plan).logprobs
    expected = gradients(policy, whole, weights)
    monkeypatch.setattr(model, "HEAD_CHUNK", 2)
    pieces = policy.score(plan).logprobs
    found = gradients(policy, pieces, weights)
    assert torch.allclose(whole, pieces, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected))


def test_a_shared_prefix_is_held_once():
    (pack,) = pack_rows(BRANCHING[:5], **EVERYTHING)
    # 4 of the prompt, then 10 and 11. What comes last in a row predicts nothing.
    assert sorted(pack.tokens) == [5, 6, 7, 8, 10, 11, 13]


def test_sixty_four_answers_to_eight_prompts_cost_eight_prompts():
    rows = [
        row(list(range(40)), [40, i, 41, 42, 43, 44], group=f"g{g}")
        for g in range(8)
        for i in range(8)
    ]
    packs = pack_rows(rows, max_tokens=1000, crossover=3000.0)
    assert len(packs) == 8
    assert sum(len(p.tokens) for p in packs) == 8 * (41 + 8 * 4)
    assert sum(len(r.tokens) for r in rows) == 64 * 46


def test_rows_with_little_in_common_are_packed_apart():
    # 10 shared of 1000 tokens: one mask over 2000 costs more than two of 1000.
    rows = [row(list(range(10)), [i] * 990) for i in (50, 60)]
    assert len(pack_rows(rows, max_tokens=10_000, crossover=3000.0)) == 2
    assert len(pack_rows(rows, max_tokens=10_000, crossover=float("inf"))) == 1


def test_sharing_can_be_switched_off():
    assert len(pack_rows(BRANCHING, share=False, **EVERYTHING)) == len(BRANCHING)


def test_rows_of_other_groups_or_temperatures_never_share():
    assert len(pack_rows(BRANCHING, **EVERYTHING)) == 3


def test_a_row_longer_than_a_pass_gets_a_pass_of_its_own():
    rows = [row(list(range(30)), [1, 2]), row([1], [2], group="h")]
    batches = passes(pack_rows(rows, max_tokens=8, crossover=100.0), max_tokens=8)
    assert [[len(pack.tokens) for pack in some] for some in batches] == [[31], [1]]


def test_plain_rows_need_no_mask():
    plain = Pack()
    plain.add(0, [1, 2, 3])
    assert model.attention_mask([plain], 5, torch.device("cpu")) is None


def test_a_node_attends_to_its_ancestors_and_itself():
    pack = Pack()
    pack.add(0, [1, 2, 3])
    pack.add(1, [1, 4])
    mask = model.attention_mask([pack], 5, torch.device("cpu"))
    assert mask is not None
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],  # padding
    ]
    assert pack.positions == [0, 1, 2, 1]


token_rows = st.lists(
    st.tuples(st.sampled_from("gh"), st.lists(st.integers(0, 2), min_size=2, max_size=7)),
    min_size=1,
    max_size=8,
)


@given(token_rows, st.integers(4, 40), st.booleans())
def test_every_trained_token_is_scored_once_after_exactly_its_own_prefix(
    drawn, max_tokens, share
):
    rows = [row(tokens[:1], tokens[1:], group=group) for group, tokens in drawn]
    packs = pack_rows(rows, max_tokens=max_tokens, crossover=20.0, share=share)
    seen = []
    for some in passes(packs, max_tokens):
        plan = plan_pass(some, rows)
        assert len(some) == 1 or len(some) * plan.length <= max_tokens
        for head, target, b, column in zip(
            plan.head_index, plan.targets, plan.rows, plan.columns
        ):
            p, node = divmod(plan.nodes[head], plan.length)
            prefix = []
            while node >= 0:
                prefix.append(some[p].tokens[node])
                node = some[p].parents[node]
            one = rows[plan.row_ids[b]]
            position = one.trained[column]
            assert prefix[::-1] == one.tokens[: position + 1]
            assert target == one.tokens[position + 1]
            seen.append((plan.row_ids[b], column))
    assert sorted(seen) == [
        (i, column) for i, one in enumerate(rows) for column in range(len(one.trained))
    ]


def test_a_model_with_a_window_shorter_than_its_rows_does_not_share(policy):
    assert policy.share_prefixes
    policy.model.config.sliding_window = 32
    assert model.attention_window(policy.model) == 32
    policy.model.config.use_sliding_window = False
    assert model.attention_window(policy.model) == float("inf")


def test_a_model_that_ignores_the_mask_does_not_share(policy, monkeypatch):
    monkeypatch.setattr(model, "attention_mask", lambda packs, length, device: None)
    assert model.probe_sharing(policy) is False


def test_the_crossover_is_where_attention_costs_as_much_as_the_matrices(policy):
    # 2 layers of hidden size 128: 12 h^2 + norms each, over 2 x layers x h
    assert 4 * 128 < model.attention_crossover(policy.model) < 10 * 128
    assert isinstance(TrainingConfig(model_name="m").max_tokens_per_pass, int)
