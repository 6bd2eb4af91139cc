"""Scored groups -> rows. Here, and only here, per-token values are shifted by one.

    tokens        a  b  c  d          the whole sequence, T tokens
    predicted by     a  b  c          position j predicts token j + 1
    labels           .  c  d          T - 1 entries; MASKED where not trained
    logprobs         .  c  d          of the sampler, for the same token as the label
    versions         .  c  d          of the policy that sampled it

Letters: R rows of a batch, G rows of a group, T tokens of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from atroposlib.errors import InvalidGroup
from atroposlib.wire import (
    MASKED,
    MASKED_LOGPROB,
    MASKED_VERSION,
    TRAINABLE_OUTCOMES,
    ScoredData,
)

V = TypeVar("V")


@dataclass(frozen=True)
class Row:
    """One sequence. Every per-token list but ``tokens`` has T - 1 entries, see above.

    Example: tokens [1, 5, 9], labels [MASKED, 9], behaviour_logprobs [1.0, -0.2],
    versions [-1, 3], reward 1.0, group "0/gsm8k/17".
    """

    tokens: list[int]
    labels: list[int]
    behaviour_logprobs: list[float]
    versions: list[int]
    reward: float
    group: str
    temperature: float = 1.0
    own_advantages: list[float] | None = None  # per token, instead of reward - baseline
    zero_advantage: bool = False
    in_loss: bool = True  # False: counts in the baseline of its group only

    @property
    def trained(self) -> list[int]:
        """Positions that have a label."""
        return [j for j, label in enumerate(self.labels) if label != MASKED]


@dataclass
class Batch:
    """The rows of one batch, and how many were left out or changed, by reason."""

    rows: list[Row]
    counts: Counter[str] = field(default_factory=Counter)
    env_metrics: dict[str, float] = field(default_factory=dict)


def to_rows(groups: Sequence[ScoredData], max_tokens: int) -> Batch:
    """Rows of a claimed batch.

    Rows of a failed outcome disappear: their score is no statement about the policy. Rows
    longer than ``max_tokens`` stay in the baseline of their group but not in the loss.

    Raises:
        InvalidGroup: trained tokens came without the sampler's logprobs.
    """
    batch = Batch([], env_metrics=mean_env_metrics(groups))
    for number, group in enumerate(groups):
        for g in range(len(group.tokens)):
            outcome = group.outcomes[g] if group.outcomes else "ok"
            if outcome not in TRAINABLE_OUTCOMES:
                batch.counts[f"dropped_{outcome}"] += 1
                continue
            batch.rows.append(
                _row(group, g, _group_key(group, number), max_tokens, batch.counts)
            )
    return batch


def _row(group: ScoredData, g: int, key: str, max_tokens: int, counts: Counter[str]) -> Row:
    tokens, mask = group.tokens[g], group.masks[g]
    # Some producers put another id than the token's where a token is trained, so the mask
    # only says whether.
    labels = [t if m != MASKED else MASKED for t, m in zip(tokens, mask)]
    logprobs = _behaviour_logprobs(group, g, labels, key)
    versions = group.versions[g] if group.versions else [MASKED_VERSION] * len(tokens)
    override = (group.overrides[g] if group.overrides else None) or {}
    fits = len(tokens) <= max_tokens
    counts["rows_too_long"] += not fits
    own = _own_advantages(group, g, counts)
    return Row(
        tokens=tokens,
        labels=_shifted(labels),
        behaviour_logprobs=_shifted(logprobs),
        versions=_shifted(versions),
        reward=group.scores[g],
        group=key,
        temperature=temperature_of(group, override),
        own_advantages=None if own is None else _shifted(own),
        zero_advantage=bool(override.get("set_advantage_to_zero")),
        in_loss=fits,
    )


def _shifted(values: list[V]) -> list[V]:
    """Entry j becomes the one of token j + 1, the token that position j predicts."""
    return values[1:]


def _group_key(group: ScoredData, number: int) -> str:
    """Identity of a prompt; groups of one prompt in one batch share their baseline."""
    return f"#{number}" if group.group_id is None else f"{group.env_id}/{group.group_id}"


def _behaviour_logprobs(group: ScoredData, g: int, labels: list[int], key: str) -> list[float]:
    if group.inference_logprobs is None:
        if all(label == MASKED for label in labels):
            return [MASKED_LOGPROB] * len(labels)
        raise InvalidGroup(
            "inference_logprobs",
            f" of group {key}",
            "missing. The loss compares the policy with the one that sampled, so every"
            " trained token needs its logprob: set server_type: vllm (or sglang, trl) in"
            " the environment's server config and sample through managed_server",
        )
    logprobs = group.inference_logprobs[g]
    for j, label in enumerate(labels):
        if label != MASKED and logprobs[j] == MASKED_LOGPROB:
            raise InvalidGroup(
                "inference_logprobs",
                f"[{g}][{j}] of group {key}",
                "marked as masked, yet masks says the token is trained",
            )
    return logprobs


def _own_advantages(group: ScoredData, g: int, counts: Counter[str]) -> list[float] | None:
    if group.advantages is None:
        return None
    own = group.advantages[g] if g < len(group.advantages) else []
    if len(own) != len(group.tokens[g]):
        counts["advantages_ignored"] += 1
        return None
    return own


def temperature_of(group: ScoredData, override: dict[str, Any]) -> float:
    """Row override, then generation_params, then group_overrides, then 1; never <= 0.

    A temperature of 0 means greedy sampling, whose logprobs are those at temperature 1.
    """
    for source in (override, group.generation_params or {}, group.group_overrides or {}):
        if (value := source.get("temperature")) is not None:
            return float(value) if float(value) > 0 else 1.0
    return 1.0


def for_loss(
    rows: Sequence[Row], advantages_R: Sequence[float]
) -> tuple[list[Row], list[list[float]]]:
    """The rows that enter the loss and their per-token advantages, (R, T - 1).

    A row's own advantages win over its scalar; ``set_advantage_to_zero`` wins over both.
    """
    kept, spread = [], []
    for row, advantage in zip(rows, advantages_R):
        if not row.in_loss or not row.trained:
            continue
        kept.append(row)
        if row.zero_advantage:
            spread.append([0.0] * len(row.labels))
        else:
            spread.append(row.own_advantages or [advantage] * len(row.labels))
    return kept, spread


def loss_weights(rows: Sequence[Row], aggregation: str) -> tuple[list[float], float]:
    """Weight of each token of a row, (R,), and what the sum over the batch is divided by.

    ``token``: a mean over all trained tokens of the batch. ``sequence``: a mean over rows
    of the mean over a row's tokens. Neither knows how rows are split into passes.
    """
    lengths = [len(row.trained) for row in rows]
    if aggregation == "token":
        return [1.0] * len(rows), float(max(1, sum(lengths)))
    return [1.0 / length for length in lengths], float(max(1, len(rows)))


def staleness(rows: Iterable[Row], version: int) -> list[int]:
    """Versions between sampling and now, for every trained token that knows its own."""
    return [
        version - row.versions[j]
        for row in rows
        for j in row.trained
        if row.versions[j] != MASKED_VERSION
    ]


def mean_env_metrics(groups: Sequence[ScoredData]) -> dict[str, float]:
    """Means over groups of metadata.metrics, as ``env/<name>``."""
    values: dict[str, list[float]] = {}
    for group in groups:
        for name, value in ((group.metadata or {}).get("metrics") or {}).items():
            if isinstance(value, (int, float)):
                values.setdefault(f"env/{name}", []).append(float(value))
    return {name: sum(seen) / len(seen) for name, seen in sorted(values.items())}
