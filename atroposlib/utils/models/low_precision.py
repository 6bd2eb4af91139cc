"""Arithmetic of a model in bfloat16, the same in the trainer and in the local server.

Parameters and products of the layers are of the low precision; what adds up is float32: the
residual stream from the embedding on, and the products of the output head. Of the distance
between two correct implementations in bfloat16, rounded logits are three fifths and a rounded
residual stream a quarter.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

# Products of half precision that come out in float32, on CUDA.
WIDE_PRODUCTS = TorchVersion(torch.__version__) >= TorchVersion("2.8")


def autocast(
    device: torch.device, dtype: torch.dtype
) -> contextlib.AbstractContextManager[Any]:
    """Layers compute in ``dtype`` inside; in float32 as they are."""
    if dtype is torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


@contextlib.contextmanager
def kept_casts(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """The passes inside share what :func:`autocast` converts: the weights, until they change.

    Autocast forgets its conversions when the outermost context ends; between the passes it is
    off, so that losses and backward passes compute as without this context.
    """
    with autocast(device, dtype), torch.autocast(device.type, enabled=False):
        yield


def widen_residual(embedding: nn.Module, dtype: torch.dtype) -> None:
    """Make the residual stream of a model float32 under :func:`autocast`.

    Shards and served models have parameters of the low precision, a single rank has float32;
    all compute alike then. Outside of autocast, where a model is compared with its own copy,
    nothing changes.
    """

    def widen(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(embedded.device.type):
            return embedded
        return embedded.to(dtype).float()

    if dtype is not torch.float32:
        embedding.register_forward_hook(widen)


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, in float32 at least. (N, K), (K, M) -> (N, M)

    Args:
        left: of low precision, or of the precision of the result.
        right: of the dtype of ``left``; on a CPU also float32 that holds numbers of that
            dtype, which spares the conversion of weights that are used often.
    """
    exact = torch.promote_types(torch.float32, left.dtype)
    if left.dtype == exact:
        return torch.mm(left, right)
    if left.is_cuda:
        if WIDE_PRODUCTS:
            # Rounding logits near 20 to bfloat16 would cost a logprob 0.06.
            return torch.mm(left, right, out_dtype=exact)
        return torch.mm(left, right).to(exact)
    with _rounded_factors(left.dtype):
        return torch.mm(left.to(exact), right.to(exact))


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a second matrix of the size of ``total`` if possible."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda and not _adds_in_place(left.device, left.dtype):
        total += wide_product(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        with _rounded_factors(left.dtype):
            total.addmm_(left.to(total.dtype), right.to(total.dtype))


@functools.cache
def _adds_in_place(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch adds a product of ``dtype`` to a float32 matrix on ``device``."""
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    total = torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, ones, ones, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):  # no kernel, or no overload
        return False
    return bool((total == 17).all())


@contextlib.contextmanager
def _rounded_factors(dtype: torch.dtype) -> Iterator[None]:
    """Float32 products of a CPU may take their factors as bfloat16, where it has bfloat16 units.

    The factors hold bfloat16 numbers already, so that the result is the same, at a third of
    the time.
    """
    matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if dtype is not torch.bfloat16 or not hasattr(matmul, "fp32_precision"):
        yield
        return
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
