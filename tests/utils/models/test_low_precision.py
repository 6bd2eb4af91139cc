"""Products and residual streams of bfloat16 that add up in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atroposlib.utils.models.low_precision import (
    add_product,
    autocast,
    wide_product,
    widen_residual,
)

CPU = torch.device("cpu")


def pair(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.Generator().manual_seed(0)
    left, right = torch.randn(5, 64, generator=at), torch.randn(64, 7, generator=at)
    return (4 * left).to(dtype), right.to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64]
)
def test_a_product_is_that_of_the_numbers_given_and_not_rounded_to_their_precision(dtype):
    left, right = pair(dtype)
    found, exact = wide_product(left, right), left.double() @ right.double()
    assert found.dtype == torch.promote_types(torch.float32, dtype)
    assert (found - exact).abs().max() < 2e-5
    if dtype is torch.bfloat16:
        assert ((left @ right) - exact).abs().max() > 0.01  # what rounding would cost
        assert torch.equal(wide_product(left, right.float()), found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_product_is_added_to_a_matrix_in_place(dtype):
    left, right = pair(dtype)
    total = torch.ones(5, 7)
    add_product(total, left, right)
    assert torch.allclose(total, 1 + wide_product(left, right), atol=1e-5)


def test_products_in_float32_are_exact_again_after_one_in_bfloat16():
    wide_product(*pair(torch.bfloat16))
    left, right = pair(torch.float32)
    assert (left @ right - left.double() @ right.double()).abs().max() < 2e-5


def test_the_residual_stream_is_float32_inside_of_autocast_and_as_it_was_outside():
    embedding, layer = nn.Embedding(4, 8).bfloat16(), nn.Linear(8, 8).bfloat16()
    widen_residual(embedding, torch.bfloat16)
    tokens = torch.tensor([1, 2])
    assert embedding(tokens).dtype == torch.bfloat16
    with autocast(CPU, torch.bfloat16):
        embedded = embedding(tokens)
        assert embedded.dtype == torch.float32
        assert torch.equal(embedded.bfloat16(), embedding.weight[tokens])
        assert layer(embedded).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert not torch.is_autocast_enabled("cpu")
