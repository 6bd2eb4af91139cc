"""The step is the same however rows are laid out: packed, shared, padded, in any split.

The reference is one padded batch through transformers' own attention, with all logits.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from example_trainer.data.packing import padding_share
from example_trainer.model import attention, loading
from tests.trainer.rows import BRANCHING, MULTI_TURN, masked_row

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def gqa_dir(tmp_path_factory):
    """A Qwen2 with two query heads to a key head, biases, and an output head of its own."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from atroposlib.testing.tiny import char_tokenizer

    directory = tmp_path_factory.mktemp("gqa")
    tokenizer = char_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.2,  # attention that is far from uniform
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def reference(gqa_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(gqa_dir, attn_implementation="eager")


@pytest.fixture
def policy(config, gqa_dir):
    made = loading.load(config(model_name=str(gqa_dir)))
    made.attention_crossover = float("inf")
    return made


def loss_of(logprobs, entropy, mask, row_ids):
    """Something that weighs every token differently and is curved in its logprob."""
    columns = torch.arange(logprobs.shape[1]) + 1
    weights = torch.tensor(row_ids)[:, None] * 0.3 - columns * 0.1 + 0.05
    return ((weights * (logprobs / 4).exp() - 0.02 * entropy) * mask).sum()


def reference_step(reference, rows):
    """(loss, gradients) of one padded batch with full logits."""
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.tensor([row.tokens + [0] * (longest - len(row.tokens)) for row in rows])
    real = torch.tensor([[j < len(row.tokens) for j in range(longest)] for row in rows])
    logits = reference(tokens, attention_mask=real.long()).logits
    logits = logits / torch.tensor([row.temperature for row in rows])[:, None, None]
    everything = torch.log_softmax(logits, -1)
    shape = len(rows), max(len(row.trained) for row in rows)
    logprobs, entropy, mask = (torch.zeros(shape) for _ in range(3))
    for b, row in enumerate(rows):
        for t, j in enumerate(row.trained):
            logprobs[b, t] = everything[b, j, row.labels[j]]
            entropy[b, t] = -(everything[b, j].exp() * everything[b, j]).sum()
            mask[b, t] = 1
    loss = loss_of(logprobs, entropy, mask, range(len(rows)))
    reference.zero_grad()
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in reference.named_parameters()}


def our_step(policy, rows, **how):
    policy.model.zero_grad()
    total, plans = 0.0, policy.plan(rows, **how)
    for plan in plans:
        scores = policy.score(plan, entropy_grad=True)
        loss = loss_of(scores.logprobs, scores.entropy, scores.mask, plan.row_ids or [0])
        loss.backward()
        total += loss.item()
    return total, {n: p.grad.clone() for n, p in policy.model.named_parameters()}, plans


def assert_equal(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], abs=TOLERANCE)
    for name, gradient in theirs[1].items():
        assert torch.allclose(ours[1][name], gradient, atol=TOLERANCE, rtol=1e-4), name


turn = st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
rows_of_any_shape = st.lists(
    st.builds(
        lambda turns, group, temperature: masked_row(
            [([1], False), *turns, ([2], True)], group, temperature=temperature
        ),
        st.lists(turn, min_size=0, max_size=4),
        st.sampled_from("gh"),
        st.sampled_from([1.0, 0.6]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=25, deadline=None)
@given(
    rows=rows_of_any_shape,
    how=st.sampled_from(["packed", "shared", "padded"]),
    budget=st.sampled_from([2, 9, 24, 1000]),
    least=st.sampled_from([1, 3]),
)
def test_any_layout_gives_the_loss_and_gradients_of_one_padded_batch(
    shared_policy, reference, rows, how, budget, least
):
    policy = shared_policy
    policy.padded, policy.share_prefixes = how == "padded", how == "shared"
    policy.max_tokens_per_microbatch = budget
    *ours, plans = our_step(policy, rows, min_microbatches=least)
    assert_equal(ours, reference_step(reference, rows))
    assert how == "padded" or padding_share(plans) == 0


@pytest.fixture(scope="module")
def shared_policy(gqa_dir):
    from example_trainer.settings.config import TrainingConfig

    cfg = TrainingConfig(model_name=str(gqa_dir), device="cpu", seq_len=64, inference_urls=[])
    made = loading.load(cfg)
    made.attention_crossover = float("inf")
    return made


def test_the_model_is_packed_and_shares_with_our_attention(policy):
    assert not policy.padded and policy.share_prefixes
    assert policy.model.config._attn_implementation == attention.NAME


@pytest.mark.parametrize("rows", [BRANCHING, MULTI_TURN], ids=["branching", "multi-turn"])
def test_ranks_sum_to_the_whole(policy, reference, rows):
    """Each rank runs equally many passes, idle ones without rows among them."""
    expected = reference_step(reference, rows)
    *ours, plans = our_step(policy, rows, divisor=5)
    assert len(plans) % 5 == 0
    assert_equal(ours, expected)


def test_a_pass_without_rows_runs_backward_through_every_weight(policy):
    plans = policy.plan([BRANCHING[0]], divisor=2)
    scores = policy.score(plans[1])
    assert scores.logprobs.shape == (1, 1) and not scores.mask.any()
    policy.model.zero_grad()
    scores.logprobs.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters())


def test_no_attention_leaks_between_rows_of_a_line(policy):
    rows = [*BRANCHING, *MULTI_TURN]
    before = policy.trained_logprobs(rows)
    changed = [*rows]
    changed[-1] = masked_row([([5, 6], False), ([40, 41], True)])
    changed[0] = masked_row([([44, 43, 42], False), ([41, 40], True)], "other")
    for one, other in zip(before[1:-1], policy.trained_logprobs(changed)[1:-1]):
        assert one == pytest.approx(other, abs=1e-6)


def test_gradient_checkpointing_and_packing_go_together(config, gqa_dir, reference):
    saving = loading.load(config(model_name=str(gqa_dir), gradient_checkpointing=True))
    assert saving.model.training and not saving.padded
    *ours, _ = our_step(saving, BRANCHING)
    assert_equal(ours, reference_step(reference, BRANCHING))


def one_row_after_another(q, k, v, bounds, longest, scale):
    """A variable-length kernel as CUDA has them, for a look at what is given to it."""
    assert max(bounds.diff()) == longest and len(q) == bounds[-1]
    times = q.shape[1] // k.shape[1]
    rows = []
    for start, end in zip(bounds, bounds[1:]):
        heads = [x[start:end].transpose(0, 1) for x in (q, k, v)]
        heads[1:] = [x.repeat_interleave(times, dim=0) for x in heads[1:]]
        attended = torch.nn.functional.scaled_dot_product_attention(
            *heads, is_causal=True, scale=scale
        )
        rows.append(attended.transpose(0, 1))
    return torch.cat(rows)


def test_a_variable_length_kernel_gets_the_plain_rows_and_no_tree(
    policy, reference, monkeypatch
):
    monkeypatch.setattr(attention, "varlen_kernel", lambda *where: one_row_after_another)
    rows = [*BRANCHING, *MULTI_TURN]
    expected = reference_step(reference, rows)
    for policy.share_prefixes in (True, False):
        *ours, plans = our_step(policy, rows)
        packs = [pack for plan in plans for pack in plan.packs]
        assert any(pack.branches for pack in packs) == policy.share_prefixes
        assert_equal(ours, expected)


def test_a_kernel_is_used_only_if_it_agrees():
    cpu = torch.device("cpu")
    agrees = attention._agrees
    assert agrees(one_row_after_another, cpu, torch.float32, 16)
    assert agrees(one_row_after_another, cpu, torch.bfloat16, 16)

    def leaking(q, k, v, bounds, longest, scale):
        ends = torch.tensor([0, len(q)])
        return one_row_after_another(q, k, v, ends, len(q), scale)

    assert not agrees(leaking, cpu, torch.bfloat16, 16)
    assert attention.varlen_kernel(cpu, torch.bfloat16, 16) is None


def test_plain_text_is_scored_as_ever(policy, reference):
    """Calls without a layout, as by generate, take padding on either side."""
    tokens = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    real = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    ours = policy.model(tokens, attention_mask=real).logits
    theirs = reference(tokens, attention_mask=real).logits
    assert torch.allclose(ours[real > 0], theirs[real > 0], atol=TOLERANCE)


def test_packing_is_switched_off_by_its_setting(config, gqa_dir):
    padded = loading.load(config(model_name=str(gqa_dir), packing="padded"))
    assert padded.padded and not padded.share_prefixes
    assert padded.model.config._attn_implementation == "sdpa"
    plain = loading.load(config(model_name=str(gqa_dir), share_prefixes=False))
    assert not plain.padded and not plain.share_prefixes


def test_attention_that_leaks_between_rows_is_noticed_at_the_start(
    config, gqa_dir, monkeypatch
):
    def one_long_row(packs, device):
        length = sum(len(pack.tokens) for pack in packs)
        bounds = torch.tensor([0, length])
        return attention.Layout([attention.Span(1, length, None)], bounds, length, length)

    monkeypatch.setattr("example_trainer.model.scoring.layout_of", one_long_row)
    policy = loading.load(config(model_name=str(gqa_dir)))
    assert policy.padded and policy.model.config._attn_implementation == "sdpa"


def test_attention_that_ignores_branches_is_noticed_at_the_start(config, gqa_dir, monkeypatch):
    monkeypatch.setattr(
        attention, "ancestor_mask", lambda pack: torch.ones(len(pack.tokens), 1).bool()
    )
    policy = loading.load(config(model_name=str(gqa_dir)))
    assert not policy.padded and not policy.share_prefixes


@pytest.mark.parametrize("asked", ["softcap", "s_aux", "position_bias"])
def test_a_model_that_wants_more_than_dot_products_is_padded(
    config, gqa_dir, monkeypatch, asked
):
    ours = attention.packed_rows

    def with_more(*args, **kwargs):
        return ours(*args, **{**kwargs, asked: 1.0})

    monkeypatch.setattr(attention, "packed_rows", with_more)
    assert loading.load(config(model_name=str(gqa_dir))).padded
    monkeypatch.undo()
    attention.register()


def test_a_window_shorter_than_the_rows_is_not_packed(config, gqa_dir):
    policy = loading.load(config(model_name=str(gqa_dir)))
    settings = policy.model.config
    settings.sliding_window, settings.use_sliding_window = 32, True
    assert loading.attention_window(policy.model) == 32
    settings.use_sliding_window = False
    assert loading.attention_window(policy.model) == float("inf")


def test_a_recurrent_model_is_padded_and_still_exact(config, tmp_path, gqa_dir):
    from transformers import MambaConfig, MambaForCausalLM

    from atroposlib.testing.tiny import char_tokenizer

    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    MambaForCausalLM(MambaConfig(**sizes)).save_pretrained(tmp_path / "mamba")
    char_tokenizer().save_pretrained(tmp_path / "mamba")
    policy = loading.load(config(model_name=str(tmp_path / "mamba")))
    assert policy.padded and not policy.share_prefixes
    rows = MULTI_TURN[:2]
    together = policy.trained_logprobs(rows)
    alone = [policy.trained_logprobs([row])[0] for row in rows]
    for one, other in zip(together, alone):
        assert one == pytest.approx(other, abs=1e-5)
