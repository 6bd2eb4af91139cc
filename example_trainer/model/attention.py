"""Attention over packs that lie end to end on a line.

Each pack attends to itself only. Packs of equal length are one call; a plain row takes the
causal kernel, a pack with branches a mask of the pack's size. No tensor has the size
(tokens of the line)^2.

    line   a a a b b b c c c c c d d d d       lengths 3 3 5 4, d with branches
    calls  [a b] causal   [c] causal   [d] with d's (4, 4) mask

On CUDA in half precision all plain rows are a single call of a variable-length kernel:
torch.nn.attention.varlen, or the flash-attn package.

Registered with transformers as ``packed_rows``. A model with it that is called without a
layout, for plain text, uses sdpa.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from atroposlib.errors import ConfigError
from example_trainer.data.packing import Pack

NAME = "packed_rows"
HALF = (torch.bfloat16, torch.float16)
KERNEL_TOLERANCE = 0.05  # tolerance of sums of a few bfloat16 values near 1
# Arguments of attention that is not computed here.
FOREIGN = ("softcap", "s_aux", "position_bias")

# (q (S, Hq, d), k, v, bounds (P + 1,) int32, longest L, scale) -> (S, Hq, d)
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, int, "float | None"], Tensor]


@dataclass(frozen=True)
class Span:
    """Neighbouring packs of equal length."""

    count: int  # n
    length: int  # L
    mask: Tensor | None  # (L, L) bool, True where a node attends; None: plain causal


@dataclass(frozen=True)
class Layout:
    """Places of the packs on a line; plain rows come first, equal lengths together."""

    spans: list[Span]
    bounds: Tensor  # (P + 1,) int32, where each plain row begins, and the end of the last
    longest: int  # tokens of the longest plain row
    plain: int  # tokens of all plain rows


def layout_of(packs: Sequence[Pack], device: torch.device) -> Layout:
    """The layout of a line of packs, in the order of packing.plan_microbatch."""
    lengths = [len(pack.tokens) for pack in packs if not pack.branches] or [1] * (not packs)
    spans = [Span(len(list(same)), length, None) for length, same in groupby(lengths)]
    spans += [
        Span(1, len(pack.tokens), ancestor_mask(pack).to(device))
        for pack in packs
        if pack.branches
    ]
    bounds = list(accumulate(lengths, initial=0))
    return Layout(
        spans,
        torch.tensor(bounds, dtype=torch.int32, device=device),
        max(lengths, default=0),
        bounds[-1],
    )


def ancestor_mask(pack: Pack) -> Tensor:
    """(L, L) bool: a node attends to its ancestors and itself."""
    mask = torch.zeros(len(pack.parents), len(pack.parents), dtype=torch.bool)
    ancestors = mask.numpy()  # the same memory
    for node, parent in enumerate(pack.parents):
        if parent >= 0:
            ancestors[node] = ancestors[parent]
        ancestors[node, node] = True
    return mask


def packed_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function of every layer: (1, heads, S, d) -> (1, S, Hq, d)."""
    if packed is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    if names := [name for name in FOREIGN if kwargs.get(name) is not None]:
        raise ConfigError(f"attention with {', '.join(names)} cannot be packed")
    # (S, heads, d), views: transformers transposed away from this order.
    dtype = _compute_dtype(value)
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))
    kernel = varlen_kernel(q.device, dtype, q.shape[-1]) if packed.plain else None
    if kernel is None:
        return _by_span(q, k, v, packed.spans, scaling)[None], None
    sizes = [packed.plain, len(q) - packed.plain]
    (q, q_rest), (k, k_rest), (v, v_rest) = (torch.split(x, sizes) for x in (q, k, v))
    attended = kernel(q, k, v, packed.bounds, packed.longest, scaling)
    if len(q_rest):
        masked = [run for run in packed.spans if run.mask is not None]
        rest = _by_span(q_rest, k_rest, v_rest, masked, scaling)
        attended = torch.cat([attended, rest])
    return attended[None], None


def _by_span(
    q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Span], scale: float | None
) -> Tensor:
    """(S, Hq, d), an sdpa call per run."""
    # A single split: slices would each fill a gradient of the whole line with zeros.
    sizes = [run.count * run.length for run in spans]
    half = q.dtype in HALF
    outputs = []
    for run, *parts in zip(spans, *(torch.split(x, sizes) for x in (q, k, v))):
        heads = [x.unflatten(0, (run.count, run.length)).transpose(1, 2) for x in parts]
        if q.is_cuda and q.shape[1] != k.shape[1] and (run.mask is not None or not half):
            # Only the flash kernel takes fewer key heads than query heads: in half
            # precision and without a mask.
            times = q.shape[1] // k.shape[1]
            heads[1:] = [x.repeat_interleave(times, dim=1) for x in heads[1:]]
        attended = scaled_dot_product_attention(
            heads[0],
            heads[1],
            heads[2],
            attn_mask=run.mask,
            is_causal=run.mask is None,
            scale=scale,
            enable_gqa=heads[0].shape[1] != heads[1].shape[1],
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _compute_dtype(value: Tensor) -> torch.dtype:
    """Under autocast queries and keys leave their rotation in float32, values do not."""
    kind = value.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return value.dtype


@functools.lru_cache(maxsize=None)
def varlen_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernel | None:
    """A variable-length kernel that works here and agrees with sdpa, or None."""
    if device.type != "cuda" or dtype not in HALF:
        return None
    for kernel in filter(None, (_torch_kernel(), _flash_kernel())):
        try:
            if _agrees(kernel, device, dtype, head_dim):
                return kernel
        except (RuntimeError, ValueError, TypeError):
            continue  # this device, head size or build is not supported by it
    return None


def _torch_kernel() -> Kernel | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # torch older than 2.10
        return None
    accepted = inspect.signature(varlen_attn).parameters
    if not {"window_size", "scale"} <= set(accepted):
        return None
    asks_for_gqa = "enable_gqa" in accepted  # torch 2.11 takes fewer key heads unasked

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
    ) -> Tensor:
        gqa: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1]} if asks_for_gqa else {}
        attended = varlen_attn(
            q,
            k,
            v,
            bounds,
            bounds,
            longest,
            longest,
            scale=scale,
            window_size=(-1, 0),  # causal
            **gqa,
        )
        assert isinstance(attended, Tensor)  # a tuple only if asked for more
        return attended

    return kernel


def _flash_kernel() -> Kernel | None:
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]
    except ImportError:
        return None

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
    ) -> Tensor:
        attended: Tensor = flash_attn_varlen_func(
            q, k, v, bounds, bounds, longest, longest, softmax_scale=scale, causal=True
        )
        return attended

    return kernel


def _agrees(kernel: Kernel, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Forward and backward on a few short rows, two query heads to one key head."""
    lengths = [3, 3, 5]
    generator = torch.Generator(device).manual_seed(0)

    def make_mask(heads: int) -> Tensor:
        shape = (sum(lengths), heads, head_dim)
        values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return values.to(dtype).requires_grad_()

    q, k, v = make_mask(2), make_mask(1), make_mask(1)
    bounds = torch.tensor([0, 3, 6, 11], dtype=torch.int32, device=device)
    with torch.enable_grad():
        actual = kernel(q, k, v, bounds, max(lengths), None)
        expected = _by_span(q, k, v, [Span(2, 3, None), Span(1, 5, None)], None)
        pairs = [(actual, expected)]
        pairs += zip(
            torch.autograd.grad(actual.square().sum(), (q, k, v)),
            torch.autograd.grad(expected.square().sum(), (q, k, v)),
        )
    return all(
        torch.allclose(a.float(), b.float(), atol=KERNEL_TOLERANCE, rtol=KERNEL_TOLERANCE)
        for a, b in pairs
    )


def register_attention() -> None:
    """Register the name with transformers, with masks as for sdpa."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, packed_rows)
    AttentionMaskInterface.register(NAME, sdpa_mask)
