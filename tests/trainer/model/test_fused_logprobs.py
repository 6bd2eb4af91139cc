"""Logprobs and entropy without the logits of the whole pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atroposlib.utils.models.causal_lm import LogitTransform
from example_trainer.model import fused_logprobs
from example_trainer.model.fused_logprobs import Wanted, token_scores

POSITIONS, HIDDEN, VOCABULARY = 7, 3, 5
SCALED, CAPPED = LogitTransform(scale=0.25), LogitTransform(scale=2.0, cap=1.5)


def tensors(bias=True, dtype=torch.float64, vocabulary=VOCABULARY, positions=POSITIONS):
    made = torch.Generator().manual_seed(0)
    shapes = [(positions, HIDDEN), (vocabulary, HIDDEN)] + [(vocabulary,)] * bias
    found = [torch.randn(s, generator=made, dtype=dtype).requires_grad_() for s in shapes]
    return found if bias else [*found, None]


SOFTENING = (1.7, 1.0, 1.7, 2.0, 0.5, 1.7, 1.0)  # of every position


def wanted(teacher=False):
    """Position 2 is scored twice, also for one token; position 5 never."""
    positions = torch.tensor([0, 1, 2, 2, 2, 3, 4, 6])
    return Wanted(
        temperatures=torch.tensor([1.0, 0.5, 2.0, 1.0, 1.5, 1.0, 0.7]),
        positions=positions,
        tokens=torch.tensor([0, 4, 1, 3, 1, 2, 2, 0]),
        counts=positions.bincount(minlength=POSITIONS).tolist(),
        teacher_tokens=(
            torch.tensor([[0, 1], [2, 2], [4, 3]] + [[1, 0]] * 5) if teacher else None
        ),
        teacher_temperatures=torch.tensor(SOFTENING),
    )


def plainly(hidden, weight, bias, asked, transform):
    logits = transform(hidden @ weight.t() + (0 if bias is None else bias))
    at_row = torch.log_softmax(logits / asked.temperatures[:, None], -1)
    at_teacher = logits / asked.teacher_temperatures[:, None]
    softened = torch.log_softmax(at_teacher, -1)[asked.positions]
    return (
        at_row[asked.positions, asked.tokens],
        -(at_row.exp() * at_row).sum(-1),
        None if asked.teacher_tokens is None else softened.gather(1, asked.teacher_tokens),
    )


@pytest.fixture(params=[10**6, 10], ids=["one chunk", "chunks of two"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(fused_logprobs, "CPU_LOGITS", request.param)
    monkeypatch.setattr(fused_logprobs, "SMALLEST_CHUNK", 1)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("teacher", [True, False], ids=["teacher", "no teacher"])
@pytest.mark.parametrize("transform", [LogitTransform(), SCALED, CAPPED], ids=repr)
def test_scores_and_gradients_are_those_of_whole_logits(chunks, bias, teacher, transform):
    inputs, asked = tensors(bias), wanted(teacher)
    how = {"entropy_grad": True, "dtype": torch.float64, "transform": transform}
    ours = token_scores(*inputs, asked, **how)
    theirs = plainly(*inputs, asked, transform)
    made = torch.Generator().manual_seed(1)
    totals = []
    for scores in (ours, theirs):
        made.manual_seed(1)
        parts = [x for x in scores if x is not None]
        assert len(parts) == 2 + teacher
        totals.append(sum((x * torch.randn(x.shape, generator=made)).sum() for x in parts))
    for mine, other in zip(ours, theirs):
        assert mine is other is None or torch.allclose(mine, other)
    leaves = [x for x in inputs if x is not None]
    for mine, other in zip(*(torch.autograd.grad(total, leaves) for total in totals)):
        assert torch.allclose(mine, other)


@pytest.mark.parametrize("transform", [LogitTransform(), CAPPED], ids=repr)
def test_the_gradients_are_those_of_finite_differences(chunks, transform):
    asked = wanted(teacher=True)
    how = {"entropy_grad": True, "dtype": torch.float64, "transform": transform}

    def scores(*inputs):
        return tuple(token_scores(*inputs, asked, **how))

    assert torch.autograd.gradcheck(scores, tensors())


def test_the_entropy_has_a_gradient_only_with_entropy_grad():
    found = token_scores(*tensors(), wanted(), dtype=torch.float64)
    assert found.logprobs.requires_grad and not found.entropy.requires_grad


def test_frozen_parts_get_no_gradient():
    hidden, weight, _ = tensors(bias=False)
    weight.requires_grad_(False)
    token_scores(hidden, weight, None, wanted(), dtype=torch.float64).logprobs.sum().backward()
    assert hidden.grad is not None and weight.grad is None


def test_no_positions_give_no_scores_but_a_graph():
    hidden, weight, _ = tensors(bias=False)
    nothing = torch.zeros(0, dtype=torch.long)
    asked = Wanted(torch.zeros(0), nothing, nothing, [])
    found = token_scores(hidden[:0], weight, None, asked, dtype=torch.float64)
    found.logprobs.sum().backward()
    assert not weight.grad.any() and not hidden.grad.any()


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_all_logits_of_a_microbatch_exist_neither_forward_nor_backward(monkeypatch):
    vocabulary, positions, at_a_time = 50, 400, 20
    monkeypatch.setattr(fused_logprobs, "CPU_LOGITS", vocabulary * at_a_time)
    hidden, weight, _ = tensors(False, torch.float32, vocabulary, positions)
    one_each = torch.arange(positions)
    asked = Wanted(torch.ones(positions), one_each, one_each % vocabulary, [1] * positions)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        with Largest() as forward:
            found = token_scores(hidden, weight, None, asked, entropy_grad=True)
        with Largest() as backward:
            (found.logprobs.sum() + found.entropy.sum()).backward()
    # hidden is the largest of what is kept, a chunk of logits or hidden of what ever is
    assert max(kept) <= positions * HIDDEN
    limit = max(vocabulary * at_a_time, positions * HIDDEN)
    assert max(forward.elements, backward.elements) <= limit < vocabulary * positions


def test_bfloat16_products_keep_float32_scores_and_gradients():
    inputs, asked = tensors(dtype=torch.float32), wanted()
    found = token_scores(*inputs, asked, dtype=torch.bfloat16)
    exact = token_scores(*inputs, asked)
    assert found.logprobs.dtype is torch.float32
    assert torch.allclose(found.logprobs, exact.logprobs, atol=0.05)
    assert not torch.equal(found.logprobs, exact.logprobs)
    found.logprobs.sum().backward()
    assert inputs[0].grad.dtype is inputs[1].grad.dtype is torch.float32
