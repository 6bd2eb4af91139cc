"""Scored groups -> rows: the only place where per-token values are shifted by one.

tokens        a  b  c  d          the whole sequence, T tokens
predicted by     a  b  c          position j predicts token j + 1
labels           .  c  d          T - 1 entries; MASKED where not trained
logprobs         .  c  d          of the sampler, for the same token as the label
versions         .  c  d          of the policy that sampled it
temperatures     .  c  d          at which it was sampled, and is scored
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import ConfigError, InvalidGroup, PictureError
from atroposlib.wire import (
    MASKED,
    MASKED_LOGPROB,
    MASKED_VERSION,
    MAX_LOGPROB,
    TRAINABLE_OUTCOMES,
    SampledSpan,
    ScoredData,
)
from atroposlib.wire.images import GroupImages, has_images
from atroposlib.wire.lineage import on_lineage
from atroposlib.wire.routing import RoutedExperts
from example_trainer.data import sampling

if TYPE_CHECKING:
    from atroposlib.utils.models.vision import PictureInputs

V = TypeVar("V")
IMAGES = (
    "groups with images are left out and acked (dropped_images): this trainer reads tokens only,"
    " and would train on image tokens without their pictures"
)
ReadPictures = Callable[[Sequence[int], Sequence[bytes]], "PictureInputs | None"]
NO_TOKEN = -1


@dataclass(frozen=True)
class Row:
    """A sequence. Every per-token list but ``tokens`` has T - 1 entries, see above.

    Example: tokens [1, 5, 9], labels [MASKED, 9], behaviour_logprobs [1.0, -0.2],
    versions [-1, 3], reward 1.0, group "0/gsm8k/17".
    """

    tokens: list[int]
    labels: list[int]
    behaviour_logprobs: list[float]
    versions: list[int]
    reward: float
    group: str
    temperatures: list[float] | None = None  # (T - 1,) of the labels; None: 1
    names_temperature: bool = True  # False: none came with the row
    spans: list[SampledSpan] = field(default_factory=list)  # places in tokens
    own_advantages: list[float] | None = None  # (T - 1,) instead of reward - baseline
    zero_advantage: bool = False
    place: tuple[int, int] | None = None  # group in the batch, row in the group
    in_loss: bool = True  # False: counts in the baseline of its group only
    finish_reason: str | None = None  # "stop", "length", ... as the engine returned it
    ref_logprobs: list[float] | None = None  # (T - 1,) of a reference, by the environment
    teacher_ids: list[list[int]] | None = None  # (T - 1, K) candidates for the label
    teacher_logprobs: list[list[float]] | None = None  # (T - 1, K)
    teacher_temperature: float = 1.0  # at which the policy scores the candidates
    routed_experts: RoutedExperts | None = (
        None  # experts of the first tokens; position j reads token j
    )
    environment: str | None = None  # its name, which decides on the algorithm
    role: str = ""  # side of a game: of the row's facts, else the endpoint of its group
    pictures: PictureInputs | None = None  # None: a row of text

    @cached_property
    def trained(self) -> list[int]:
        """Positions that have a label."""
        positions: list[int] = self.trained_at.tolist()
        return positions

    @cached_property
    def trained_at(self) -> NDArray[np.int64]:
        """``trained`` as an index of arrays."""
        return np.flatnonzero(np.array(self.labels, np.int64) != MASKED)

    @property
    def place_in_errors(self) -> str:
        """Group and environment, as an InvalidGroup shows them."""
        return f" of group {self.group} of environment {self.environment or 'unnamed'}"

    @property
    def trained_temperatures(self) -> list[float]:
        if self.temperatures is None:
            return [1.0] * len(self.trained)
        return at_trained(self, self.temperatures)

    @property
    def trained_teacher_logprobs(self) -> list[float]:
        """The teacher's logprob of every trained token; MASKED_LOGPROB where it gave none."""
        if self.teacher_ids is None or self.teacher_logprobs is None:
            return [MASKED_LOGPROB] * len(self.trained)
        entries = zip(
            at_trained(self, self.labels),
            at_trained(self, self.teacher_ids),
            at_trained(self, self.teacher_logprobs),
        )
        return [
            _rounded(logprobs[ids.index(label)]) if label in ids else MASKED_LOGPROB
            for label, ids, logprobs in entries
        ]

    @property
    def comparable_versions(self) -> list[int]:
        """Version of every trained token; -1 if its logprob is not comparable."""
        return at_trained(self, sampling.comparable_versions(self.versions, self.spans))


def _rounded(logprob: float) -> float:
    """0 for the logprob of a sure token, which rounding puts a little above 0: above 0 means absent."""
    return 0.0 if 0 < logprob <= MAX_LOGPROB else logprob


def unsampled_row(tokens: list[int], group: str, labels: list[int] | None = None) -> Row:
    """A row of text without a sampler; by default every token but the first has a label."""
    n = len(tokens) - 1
    labels = tokens[1:] if labels is None else labels
    return Row(tokens, labels, [MASKED_LOGPROB] * n, [MASKED_VERSION] * n, 0.0, group)


@dataclass
class TrainingBatch:
    """The rows of a batch, and how many were left out or changed, by reason."""

    rows: list[Row]
    counts: Counter[str] = field(default_factory=Counter)
    env_metrics: dict[str, float] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)  # sentences for the log


class _Rules(NamedTuple):
    max_tokens: int
    needs_sampler: bool
    unknown_temperature: sampling.UnknownTemperature


def to_rows(
    groups: Sequence[ScoredData],
    max_tokens: int,
    *,
    needs_sampler: bool | Sequence[bool] = True,
    unknown_temperature: sampling.UnknownTemperature = "warn",
    incarnation: int = 0,
    starts: Sequence[int] = (),
    read_pictures: ReadPictures | None = None,
) -> TrainingBatch:
    """Rows of a claimed batch.

    Rows of a failed outcome are dropped, because their score does not describe the policy. Rows
    longer than ``max_tokens`` stay in the baseline of their group but not in the loss. Groups with
    images are dropped without ``read_pictures``: tokens alone are not what was sampled from.

    Args:
        needs_sampler: the loss compares with the policy that sampled; False for losses like
            cross entropy, which train on text without a sampler. If True, trained tokens
            without the sampler's logprobs raise InvalidGroup. A sequence has an entry per group.
        unknown_temperature: treatment of trained rows that name no temperature.
        incarnation, starts: of this trainer's life. Versions of weights that an earlier life
            had and this life has not are replaced by versions as many steps away
            (``on_lineage``).
        read_pictures: pixel tensors of a row, from its tokens and data URLs. A row whose
            pictures do not fit its tokens is dropped, counted and noted.
    """
    needs_G = needs_sampler
    if isinstance(needs_G, bool):
        needs_G = [needs_G] * len(groups)
    batch = TrainingBatch([], env_metrics=mean_env_metrics(groups))
    # Environments whose pictures do not fit: a row of each is noted.
    unfit: set[str | None] = set()
    for number, group in enumerate(groups):
        rules = _Rules(max_tokens, needs_G[number], unknown_temperature)
        pictured = has_images(group.images)
        if pictured and read_pictures is None:
            batch.counts["dropped_images"] += len(group.tokens)
            batch.notes.add(IMAGES)
            continue
        images = GroupImages(group.images)
        own = partial(
            on_lineage, incarnation=group.incarnation, current=incarnation, starts=starts
        )
        # Identity of a prompt; groups of the same prompt in a batch share their baseline.
        key = f"#{number}" if group.group_id is None else f"{group.env_id}/{group.group_id}"
        for g in range(len(group.tokens)):
            outcome = group.outcomes[g] if group.outcomes else "ok"
            if outcome not in TRAINABLE_OUTCOMES:
                batch.counts[f"dropped_{outcome}"] += 1
                continue
            row = _row(group, g, key, rules, batch, own)
            if read_pictures is not None:
                try:
                    row = replace(
                        row, pictures=_pictures(group, g, key, images, read_pictures)
                    )
                except InvalidGroup as error:
                    batch.counts["dropped_pictures"] += 1
                    if (name := sampling.named_environment(group)) not in unfit:
                        batch.notes.add(str(error))
                    unfit.add(name)
                    continue
            batch.rows.append(replace(row, place=(number, g)))
    return batch


def _pictures(
    group: ScoredData, g: int, key: str, images: GroupImages, read_pictures: ReadPictures
) -> PictureInputs | None:
    """Pictures of a row; None if it has none. Raises InvalidGroup: they do not fit its tokens."""
    tokens, mask = group.tokens[g], group.masks[g]
    try:
        if pictures := images.of_row(g):
            return read_pictures(tokens, pictures)
        # Of a row of text what was sampled is text in any case.
        return read_pictures(
            [t if m == MASKED else NO_TOKEN for t, m in zip(tokens, mask)], []
        )
    except PictureError as error:
        name = sampling.named_environment(group) or "unnamed"
        where = f"[{g}] of group {key} of environment {name}"
        raise InvalidGroup("images", where, f"{error}; the row is left out") from error


def _row(
    group: ScoredData,
    g: int,
    key: str,
    rules: _Rules,
    batch: TrainingBatch,
    version_of: Callable[[int], int],
) -> Row:
    tokens, mask = group.tokens[g], group.masks[g]
    # Some producers put another id than the token's where a token is trained, so the mask
    # is read as a flag only.
    labels = [t if m != MASKED else MASKED for t, m in zip(tokens, mask)]
    logprobs = _behaviour_logprobs(group, g, labels, key, rules.needs_sampler)
    temperatures, known = sampling.temperatures_of(group, g, labels)
    spans = sampling.spans_of(group, g)
    if rules.needs_sampler and any(label != MASKED for label in labels):
        unknown = rules.unknown_temperature
        batch.notes.update(sampling.sampling_notes(key, spans, known, unknown, batch.counts))
    versions = group.versions[g] if group.versions else [MASKED_VERSION] * len(tokens)
    on_line = {version: version_of(version) for version in set(versions)}
    versions = [on_line[version] for version in versions]
    override = (group.overrides[g] if group.overrides else None) or {}
    fits = len(tokens) <= rules.max_tokens
    batch.counts["rows_too_long"] += not fits
    own = _own_advantages(group, g, batch.counts)
    return Row(
        tokens=tokens,
        labels=_shift(labels),
        behaviour_logprobs=_shift(logprobs),
        versions=_shift(versions),
        reward=group.scores[g],
        group=key,
        temperatures=_shift(temperatures),
        names_temperature=known,
        spans=spans,
        own_advantages=None if own is None else _shift(own),
        zero_advantage=bool(override.get("set_advantage_to_zero")),
        in_loss=fits,
        finish_reason=group.finish_reasons[g] if group.finish_reasons else None,
        ref_logprobs=_shifted_row(group.ref_logprobs, g),
        teacher_ids=_shifted_row(group.distill_token_ids, g),
        teacher_logprobs=_shifted_row(group.distill_logprobs, g),
        routed_experts=group.routed_experts[g] if group.routed_experts else None,
        environment=sampling.named_environment(group),
        role=role_of(group.metadata or {}, g),
    )


def role_of(metadata: Mapping[str, Any], g: int) -> str:
    """The role of row ``g`` of a group: a fact of the row, else the endpoint of the group."""
    rows = metadata.get("rows")
    facts = rows[g] if isinstance(rows, list) and g < len(rows) else None
    role = facts.get("role") if isinstance(facts, dict) else None
    return str(role or metadata.get("endpoint") or "")


def _shift(values: list[V]) -> list[V]:
    """Entry j becomes that of token j + 1, the token that position j predicts."""
    return values[1:]


def _shifted_row(values: list[list[V]] | None, g: int) -> list[V] | None:
    """Row ``g`` of an optional per-token field, shifted; None where it is absent or empty."""
    return _shift(values[g]) if values and values[g] else None


def _behaviour_logprobs(
    group: ScoredData, g: int, labels: list[int], key: str, needed: bool
) -> list[float]:
    if group.inference_logprobs is None:
        if not needed or all(label == MASKED for label in labels):
            return [MASKED_LOGPROB] * len(labels)
        raise InvalidGroup(
            "inference_logprobs",
            f" of group {key} of environment {sampling.named_environment(group) or 'unnamed'}",
            "missing. The loss compares the policy with the one that sampled, so every"
            " trained token needs its logprob: set server_type: vllm (or sglang, trl) in"
            " the environment's server config and sample through managed_server, or train text"
            " without a sampler with loss: cross_entropy",
        )
    logprobs = group.inference_logprobs[g]
    for j, label in enumerate(labels):
        if label != MASKED and logprobs[j] == MASKED_LOGPROB:
            raise InvalidGroup(
                "inference_logprobs",
                f"[{g}][{j}] of group {key}",
                "marked as masked, but the token is trained according to masks",
            )
        if label != MASKED and logprobs[j] > MAX_LOGPROB:
            raise InvalidGroup(
                "inference_logprobs",
                f"[{g}][{j}] of group {key}",
                f"{logprobs[j]:g} is the logprob of a probability above 1: the sampler's"
                " logprobs are wrong or are not logprobs",
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


def without_stale_tokens(row: Row, version: int, max_staleness: int) -> Row:
    """The row with tokens sampled more than ``max_staleness`` versions ago not trained.

    A token of unknown version stays trained.
    """
    oldest = version - max_staleness
    labels = [
        MASKED if MASKED_VERSION != v < oldest else label
        for label, v in zip(row.labels, row.versions)
    ]
    return row if labels == row.labels else replace(row, labels=labels)


def newest_version(rows: Iterable[Row]) -> int | None:
    """The newest version of a trained token whose logprob can be compared with the trainer's."""
    versions = {version for row in rows for version in row.comparable_versions}
    return max((version for version in versions if version >= 0), default=None)


def at_trained(row: Row, values: Sequence[V]) -> list[V]:
    """Of a (T - 1,) list the entries of the trained tokens."""
    return [values[j] for j in row.trained]


def loss_weights(
    rows: Sequence[Row], aggregation: str, aggregation_length: int | None = None
) -> tuple[list[float], float]:
    """Weight of each token of a row, (R,), and what the sum over the batch is divided by.

    ``token``: a mean over all trained tokens of the batch. ``sequence``: a mean over rows
    of the mean over a row's tokens. ``constant``: the sum over tokens over
    R x ``aggregation_length``, Dr. GRPO's (arXiv 2503.20783): a token counts the same in a
    short and in long rows, in batches of short and of long rows. No aggregation depends on
    how rows are split into micro-batches.

    Raises:
        ConfigError: the aggregation is unknown, or ``constant`` without its length.
    """
    lengths = [len(row.trained) for row in rows]
    if aggregation == "token":
        return [1.0] * len(rows), float(max(1, sum(lengths)))
    if aggregation == "sequence":
        return [1.0 / max(1, length) for length in lengths], float(max(1, len(rows)))
    if aggregation != "constant" or aggregation_length is None:
        raise ConfigError(
            f"loss_aggregation {aggregation!r}: there are token, sequence, and constant,"
            " which needs aggregation_length"
        )
    return [1.0] * len(rows), float(max(1, len(rows)) * aggregation_length)


def token_staleness(rows: Iterable[Row], version: int) -> list[int]:
    """Versions between sampling and now, for every trained token with a known version."""
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
