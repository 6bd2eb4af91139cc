"""Logprobs and entropy from hidden states, without all logits of a micro-batch.

The output head is the widest product of a small model: 1,000 positions of a vocabulary of
150,000 are 0.6 GB in float32, before any gradient. Here logits exist for a few positions at
a time, in the forward and again in the backward pass; kept between the two are the hidden
states and one or two numbers per position.

With z = h W^T / temperature, p = softmax(z), and the gradients g of a logprob and e of the
entropy S of a position:

    d logprob_y / dz = onehot(y) - p           dS / dz = -p (log p + S)
    dL / dz = g (onehot(y) - p) - e p (log p + S)

Where a model scales its logits the scale joins the temperature. A cap c of it makes
z = k tanh(v / k) of v = h W^T / temperature, with k = c / temperature: dz / dv = 1 - (z / k)^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atroposlib.utils.models.causal_lm import LogitTransform
from atroposlib.utils.models.low_precision import add_product, wide_product

# Logits that exist at a time: 64 MB on a CPU, whose caches like less; 512 MB on CUDA, whose
# products want many rows.
CPU_LOGITS = 2**24
CUDA_LOGITS = 2**27
SMALLEST_CHUNK = 16


@dataclass(frozen=True)
class Wanted:
    """Tokens to be scored, and their positions."""

    temperatures: Tensor  # (H,) float32
    positions: Tensor  # (N,) ascending, into the H positions
    tokens: Tensor  # (N,)
    counts: list[int]  # (H,) pairs of each position
    teacher_tokens: Tensor | None = None  # (N, K)
    teacher_temperatures: Tensor | None = None  # (H,) float32; None: 1


class TokenScores(NamedTuple):
    logprobs: Tensor  # (N,) at the temperature of the position
    entropy: Tensor  # (H,) at it
    teacher: Tensor | None  # (N, K) at the teacher's temperature of the position


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    wanted: Wanted,
    *,
    entropy_grad: bool = False,
    dtype: torch.dtype = torch.float32,
    transform: LogitTransform = LogitTransform(),
) -> TokenScores:
    """Score tokens by the head ``weight``, with gradients to hidden, weight and bias.

    Args:
        hidden: (H, D).
        weight: (V, D). bias: (V,).
        entropy_grad: the entropy has a gradient.
        dtype: of the products; all later values are float32 at least.
        transform: of the products to logits.
    """
    logprobs, entropy, teacher = _TokenScores.apply(
        hidden, weight, bias, wanted, entropy_grad, dtype, transform
    )  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, entropy, None if wanted.teacher_tokens is None else teacher)


class _Chunk(NamedTuple):
    """Some positions, and the pairs of just these."""

    positions: slice
    pairs: slice
    local: Tensor  # (n,) position of each pair, counted from the first of the chunk
    tokens: Tensor  # (n,)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Wanted,
        entropy_grad: bool,
        dtype: torch.dtype,
        transform: LogitTransform,
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = _Head(hidden, weight, bias, wanted, dtype, transform)
        logprobs = hidden.new_empty(len(wanted.tokens), dtype=head.exact)
        normaliser = hidden.new_empty(len(hidden), dtype=head.exact)
        entropy, softened = torch.empty_like(normaliser), torch.empty_like(normaliser)
        teacher_tokens = wanted.teacher_tokens
        candidates = teacher_tokens.shape[1] if teacher_tokens is not None else 0
        teacher = hidden.new_empty(len(wanted.tokens), candidates, dtype=head.exact)
        for chunk in head.chunks():
            z = head.logits(chunk)  # (C, V)
            top = z.amax(-1)
            odds = (z - top[:, None]).exp_()
            total = odds.sum(-1)
            lse = top + total.log()
            normaliser[chunk.positions] = lse
            entropy[chunk.positions] = lse - torch.linalg.vecdot(odds, z) / total
            del odds
            logprobs[chunk.pairs] = z[chunk.local, chunk.tokens] - lse[chunk.local]
            if teacher_tokens is not None:
                z *= head.softening(chunk)
                soft = z.logsumexp(-1)
                softened[chunk.positions] = soft
                picked = z[chunk.local[:, None], teacher_tokens[chunk.pairs]]
                teacher[chunk.pairs] = picked - soft[chunk.local, None]
        ctx.save_for_backward(hidden, weight, bias, normaliser, entropy, softened)
        ctx.wanted, ctx.dtype, ctx.entropy_grad = wanted, dtype, entropy_grad
        ctx.transform = transform
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy, teacher

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_logprobs: Tensor, of_entropy: Tensor, of_teacher: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, normaliser, entropy, softened = ctx.saved_tensors
        wanted, (to_hidden, to_weight, to_bias) = ctx.wanted, ctx.needs_input_grad[:3]
        head = _Head(hidden, weight, bias, wanted, ctx.dtype, ctx.transform)
        d_hidden = torch.empty_like(hidden) if to_hidden else None
        d_weight: Tensor | None = None
        d_bias = torch.zeros_like(bias, dtype=head.exact) if to_bias else None
        for chunk in head.chunks():
            z = head.logits(chunk)
            slope_of_cap = head.slope_of_cap(z, chunk)  # z is used up below
            lse = normaliser[chunk.positions, None]
            g = of_logprobs[chunk.pairs]
            scale = z.new_zeros(len(z)).index_add_(0, chunk.local, g)[:, None]
            if ctx.entropy_grad:
                # -p (log p + S) e - p g, with log p = z - lse
                e = of_entropy[chunk.positions, None]
                slope = (z - (lse - entropy[chunk.positions, None])) * e
                p = (z - lse).exp_()
                d_z = p.mul_(slope.add_(scale)).neg_()
            else:
                spent = z if wanted.teacher_tokens is None else z.clone()
                d_z = spent.sub_(lse).exp_().mul_(-scale)
            d_z.index_put_((chunk.local, chunk.tokens), g, accumulate=True)
            if wanted.teacher_tokens is not None:
                head.add_teacher(d_z, z, chunk, softened, of_teacher)
            if slope_of_cap is not None:
                d_z.mul_(slope_of_cap)
            if d_bias is not None:
                d_bias += (d_z / head.divisors[chunk.positions]).sum(0)
            d_z = d_z.to(ctx.dtype)
            if d_hidden is not None:
                inner = wide_product(d_z, head.weight) / head.divisors[chunk.positions]
                d_hidden[chunk.positions] = inner.to(hidden.dtype)
            if to_weight and d_weight is None:
                d_weight = wide_product(d_z.t(), head.inputs(chunk))
            elif d_weight is not None:
                add_product(d_weight, d_z.t(), head.inputs(chunk))
        if to_weight and d_weight is None:  # there was no position
            d_weight = torch.zeros_like(weight, dtype=head.exact)
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            *(None,) * 4,
        )


class _Head:
    """Computations shared by forward and backward."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Wanted,
        dtype: torch.dtype,
        transform: LogitTransform,
    ) -> None:
        self.exact = torch.promote_types(torch.float32, dtype)
        self.hidden, self.dtype, self.wanted = hidden, dtype, wanted
        self.weight = weight.detach().to(dtype)
        if not weight.is_cuda:  # once, not for each chunk
            self.weight = self.weight.to(self.exact)
        self.bias = None if bias is None else bias.detach().to(self.exact)
        self.temperatures = wanted.temperatures.to(self.exact)[:, None]  # (H, 1)
        self.divisors = self.temperatures / transform.scale  # (H, 1)
        self.cap = transform.cap

    def chunks(self) -> list[_Chunk]:
        limit = CUDA_LOGITS if self.hidden.is_cuda else CPU_LOGITS
        size = max(SMALLEST_CHUNK, limit // len(self.weight))
        ends = list(accumulate(self.wanted.counts, initial=0))
        parts = []
        for first in range(0, len(self.hidden), size):
            last = min(first + size, len(self.hidden))
            pairs = slice(ends[first], ends[last])
            local = self.wanted.positions[pairs] - first
            parts.append(_Chunk(slice(first, last), pairs, local, self.wanted.tokens[pairs]))
        return parts

    def inputs(self, chunk: _Chunk) -> Tensor:
        """(C, D) hidden / divisor, which spares a division of the logits."""
        scaled = self.hidden[chunk.positions].detach() / self.divisors[chunk.positions]
        return scaled.to(self.dtype)

    def logits(self, chunk: _Chunk) -> Tensor:
        """(C, V) logits / temperature."""
        z = wide_product(self.inputs(chunk), self.weight.t())
        if self.bias is not None:
            z = z + self.bias / self.divisors[chunk.positions]
        if self.cap is not None:
            cap = self.cap / self.temperatures[chunk.positions]
            z = z.div_(cap).tanh_().mul_(cap)
        return z

    def slope_of_cap(self, z: Tensor, chunk: _Chunk) -> Tensor | None:
        """Derivative (C, V) of capped logits with respect to logits before the cap."""
        if self.cap is None:
            return None
        return 1 - (z * (self.temperatures[chunk.positions] / self.cap)).square_()

    def softening(self, chunk: _Chunk) -> Tensor:
        """(C, 1) from the temperature of the position to the teacher's."""
        own = self.temperatures[chunk.positions]
        teacher = self.wanted.teacher_temperatures
        return own if teacher is None else own / teacher.to(own)[chunk.positions, None]

    def add_teacher(
        self, d_z: Tensor, z: Tensor, chunk: _Chunk, softened: Tensor, of_teacher: Tensor
    ) -> None:
        """Add the gradient by way of the teacher's candidates; ``z`` is used up."""
        assert self.wanted.teacher_tokens is not None
        g = of_teacher[chunk.pairs]  # (n, K)
        ratio = self.softening(chunk)
        scale = z.new_zeros(len(z)).index_add_(0, chunk.local, g.sum(-1))[:, None]
        z.mul_(ratio).sub_(softened[chunk.positions, None]).exp_()
        d_z.sub_(z.mul_(scale * ratio))
        rows = chunk.local[:, None].expand_as(g)
        g = g * ratio[chunk.local]
        d_z.index_put_((rows, self.wanted.teacher_tokens[chunk.pairs]), g, accumulate=True)
