"""Packed attention: no leaks between rows, variable-length kernels, plain text."""

from __future__ import annotations

import pytest
import torch

from example_trainer.model import attention, loading
from example_trainer.model.scoring import decoder_layers
from tests.trainer.layouts import TOLERANCE, assert_equal, our_step, reference_step
from tests.trainer.rows import BRANCHING, MULTI_TURN, masked_row


@pytest.fixture
def policy(gqa_policy):
    return gqa_policy


def test_the_model_is_packed_and_shares_with_our_attention(policy):
    assert not policy.padded and policy.share_prefixes
    assert policy.model.config._attn_implementation == attention.NAME


def test_no_attention_leaks_between_rows_of_a_line(policy):
    rows = [*BRANCHING, *MULTI_TURN]
    before = policy.trained_logprobs(rows)
    changed = [*rows]
    changed[-1] = masked_row([([5, 6], False), ([40, 41], True)])
    changed[0] = masked_row([([44, 43, 42], False), ([41, 40], True)], "other")
    for one, other in zip(before[1:-1], policy.trained_logprobs(changed)[1:-1]):
        assert one == pytest.approx(other, abs=1e-6)


def test_gradient_checkpointing_and_packing_go_together(config, gqa_dir, reference):
    saving = loading.load_policy(config(model_name=str(gqa_dir), gradient_checkpointing=True))
    assert decoder_layers(saving.model)[0].training and not saving.padded
    *ours, _ = our_step(saving, BRANCHING)
    assert_equal(ours, reference_step(reference, BRANCHING))


def one_row_after_another(q, k, v, bounds, longest, scale):
    """Imitate a CUDA variable-length kernel and record its arguments."""
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


def test_a_variable_length_kernel_gets_the_plain_rows_only(policy, reference, monkeypatch):
    monkeypatch.setattr(attention, "varlen_kernel", lambda *where: one_row_after_another)
    rows = [*BRANCHING, *MULTI_TURN]
    expected = reference_step(reference, rows)
    for policy.share_prefixes in (True, False):
        *ours, plans = our_step(policy, rows)
        packs = [pack for plan in plans for pack in plan.packs]
        assert any(pack.branches for pack in packs) == policy.share_prefixes
        assert_equal(ours, expected)


def test_kernel_is_used_only_if_it_matches_the_reference():
    cpu = torch.device("cpu")
    agrees = attention._agrees
    assert agrees(one_row_after_another, cpu, torch.float32, 16)
    assert agrees(one_row_after_another, cpu, torch.bfloat16, 16)

    def leaking(q, k, v, bounds, longest, scale):
        ends = torch.tensor([0, len(q)])
        return one_row_after_another(q, k, v, ends, len(q), scale)

    assert not agrees(leaking, cpu, torch.bfloat16, 16)
    assert attention.varlen_kernel(cpu, torch.bfloat16, 16) is None


@pytest.mark.parametrize("asks_for_gqa", [True, False])
def test_kernel_of_torch_is_called_with_what_its_version_accepts(monkeypatch, asks_for_gqa):
    from torch.nn.attention import varlen

    def newer(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):
        assert enable_gqa
        return older(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, window_size=window_size)

    def older(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size):
        assert window_size == (-1, 0)
        return one_row_after_another(q, k, v, cu_q, max_q, scale)

    monkeypatch.setattr(varlen, "varlen_attn", newer if asks_for_gqa else older)
    kernel = attention._torch_kernel()
    assert attention._agrees(kernel, torch.device("cpu"), torch.float32, 16)


def test_plain_text_is_scored_by_sdpa(policy, reference):
    """Calls without a layout, as by generate, take padding on either side."""
    tokens = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
    real = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    ours = policy.model(tokens, attention_mask=real).logits
    theirs = reference(tokens, attention_mask=real).logits
    assert torch.allclose(ours[real > 0], theirs[real > 0], atol=TOLERANCE)
