"""How the rows of a model may be packed, found out by what the model computes.

Hidden states of a few short rows are computed each way and compared with hidden states of the
model alone. Recurrent models, and models with their own attention, train on padded rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.utils.models.causal_lm import LARGE, LogitTransform, measured_transform
from atroposlib.utils.models.routers import fitted_routers
from example_trainer.data.rows import unsampled_row
from example_trainer.model import attention
from example_trainer.model.policy import ModelFacts, PackedModel, Policy
from example_trainer.model.scoring import ids, inner_model, inputs_of
from example_trainer.settings.batch import LoadSettings

# Packing must not change a logprob by more than float32 rounding does.
PROBE_TOLERANCE = 1e-3
# Rows of which two share their beginning, and two share nothing.
PROBES = [
    unsampled_row([1, 2, 3, 4, 2, 3], "a"),
    unsampled_row([1, 2, 3, 4, 4, 5, 6], "a"),
    unsampled_row([6, 1, 2], "b"),
    unsampled_row([3, 3], "c"),
]


def model_positions(model: Any) -> int:
    """Maximum number of tokens of a sequence in the model."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(positions) if positions else sys.maxsize


def attention_window(model: Any) -> float:
    """Largest number of keys of a layer. Packed attention has no window."""
    settings = model.config.get_text_config().to_dict()
    windows = [settings.get("attention_chunk_size")]
    if settings.get("use_sliding_window", True):
        windows.append(settings.get("sliding_window"))
    return min((w for w in windows if w), default=float("inf"))


def probe(model: PackedModel, settings: LoadSettings) -> ModelFacts:
    """Measure a whole model, set it up by what was measured, and return that."""
    facts = packing_facts(model, settings)
    model.adopt(facts)
    if isinstance(model, Policy):
        facts = replace(facts, transform=astuple(check_head(model)))
        if settings.router_replay:
            tokens = ids([PROBES[1].tokens], model.device)
            facts = replace(facts, routers=fitted_routers(inner_model(model.model), tokens))
        model.adopt(facts)
    return facts


def packing_facts(model: PackedModel, settings: LoadSettings) -> ModelFacts:
    """Packing and prefix sharing, by settings and by what the model computes.

    Raises:
        ConfigError: the model computes positions anew for every length of a pass.
    """
    own = _own_hidden(model)  # computed before attention is replaced
    switch = rope_switch(model, own[0])
    apart = ModelFacts(padded=True, share_prefixes=False, rope_switch=switch)
    if settings.packing == "padded" or settings.seq_len > attention_window(model.model):
        return apart
    transformer = inner_model(model.model)
    before = transformer.config._attn_implementation
    attention.register_attention()
    transformer.set_attn_implementation(attention.NAME)
    if not _is_same(model, own, share=False, switch=switch):
        transformer.set_attn_implementation(before)
        return apart
    shares = settings.share_prefixes and _is_same(model, own, share=True, switch=switch)
    return ModelFacts(padded=False, share_prefixes=shares, rope_switch=switch)


def _own_hidden(model: PackedModel) -> list[Tensor]:
    """Hidden states (T - 1, D) of each probe, by a plain forward each, in float32."""
    return [model.module.own_hidden(ids([row.tokens], model.device))[0, :-1] for row in PROBES]


def rope_switch(model: PackedModel, own: Tensor) -> float:
    """Tokens of a pass from which the model rotates all of its positions differently.

    Longrope takes a single set of factors for a pass, chosen by its largest position. So a
    short row is computed together with a row at the end of the context; if that changes the
    short row, the length from which it does is searched.

    Raises:
        ConfigError: there are more than two ways.
    """
    tokens, longest = PROBES[0].tokens, model.max_tokens_per_row
    start = list(range(len(tokens)))

    def hidden_beside(length: int) -> Tensor:
        """(T - 1, D) of the probe in a pass of ``length`` positions."""
        end = [length - len(tokens) + i for i in start]
        positions = ids([start, end], model.device)
        hidden = model.module.own_hidden(ids([tokens, tokens], model.device), positions)
        return hidden[0, :-1]

    try:
        if longest <= len(tokens) or _close(far := hidden_beside(longest), own):
            return float("inf")
    except (TypeError, ValueError):
        return float("inf")  # a model without positions
    short, switch = len(tokens), longest
    while switch - short > 1:
        middle = (short + switch) // 2
        if _close(hidden_beside(middle), own):
            short = middle
        else:
            switch = middle
    if not _close(hidden_beside(switch), far):
        raise ConfigError(
            f"{type(inner_model(model.model)).__name__} rotates positions by the length of the"
            f" pass from {switch} tokens on, in more than two ways: set seq_len {short} or less"
        )
    return switch


def _close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= PROBE_TOLERANCE * expected.abs().max())


@torch.no_grad()
def _is_same(model: PackedModel, own: Sequence[Tensor], *, share: bool, switch: float) -> bool:
    """Whether packed rows have the hidden states ``own`` of the rows alone."""
    try:
        with model.packed(share=share, switch=switch):
            return all(
                bool(
                    (hidden - own[i][column]).abs().max()
                    <= PROBE_TOLERANCE * own[i].abs().max()
                )
                for i, column, hidden in _packed_hidden(model)
            )
    except (ConfigError, RuntimeError, TypeError, ValueError, IndexError):
        # Attention with more than dot products, or a model that fails on a line of many
        # rows.
        return False


def _packed_hidden(model: PackedModel) -> Iterator[tuple[int, int, Tensor]]:
    """Probe, trained token of it, and the (D,) hidden state that predicts it."""
    for microbatch in model.plan(PROBES):
        hidden = model.module.hidden(inputs_of(microbatch, model.device))
        for h, b, column in zip(microbatch.head_index, microbatch.rows, microbatch.columns):
            yield microbatch.row_ids[b], column, hidden[h]


@torch.no_grad()
def check_head(policy: Policy) -> LogitTransform:
    """Follow what the model applies after its output head, and return it.

    Raises:
        ConfigError: logprobs are not the model's own.
    """
    model = inner_model(policy.model)
    name = type(model).__name__
    tokens = ids([PROBES[1].tokens], policy.device)
    transform = measured_transform(model, tokens, PROBE_TOLERANCE / LARGE)
    if transform is None:
        raise ConfigError(
            f"{name} changes its logits after the output head in another way than by a scale"
            " and a cap that its configuration names; such models cannot be trained yet"
        )
    policy.module.follow_head(transform)
    worst = 0.0
    with policy.module.in_float32():
        ours_R_T = policy.trained_logprobs(PROBES)
    for row, ours in zip(PROBES, ours_R_T):
        logits = model(ids([row.tokens], policy.device), use_cache=False).logits[0, :-1]
        labels = ids(row.labels, policy.device)[:, None]
        own = torch.log_softmax(logits.float(), -1).gather(-1, labels)[:, 0].cpu()
        worst = max(worst, float((own - torch.tensor(ours)).abs().max()))
    if worst > PROBE_TOLERANCE:
        raise ConfigError(
            f"logprobs of {name} are not those of its own logits (they differ by {worst:.3g});"
            " such models cannot be trained yet"
        )
    return transform
