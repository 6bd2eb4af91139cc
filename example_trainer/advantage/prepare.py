"""A batch -> the inputs of the loss, computed once before the first optimizer step.

rewards, group ids        --> advantages per row --+
policy and reference model --> KL in the reward ---+--> advantages per trained token
value model                --> values, returns ----+
proximal logprobs: of the policy before the first step on this batch
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.command import plugins
from atroposlib.wire import MAX_LOGPROB
from example_trainer.advantage import estimators
from example_trainer.advantage.gae import token_advantages
from example_trainer.advantage.rewards import TRUNCATED, rows_by_group
from example_trainer.advantage.roles import RoleBaselines
from example_trainer.data.packing import pack_ffd
from example_trainer.data.rows import Row, at_trained, without_stale_tokens
from example_trainer.losses import kl
from example_trainer.model.critic import ValueModel
from example_trainer.model.policy import Policy
from example_trainer.settings.algorithms import parts_of
from example_trainer.settings.loss import ObjectiveSettings

NO_REFERENCES: Mapping[str | None, Policy] = MappingProxyType({})


@dataclass
class Prepared:
    """Rows that enter the loss, and their per-token values."""

    rows: list[Row]
    advantages_R_T: list[list[float]]
    reference_R_T: list[list[float]] | None = None  # logprobs of the reference model
    proximal_R_T: list[list[float]] | None = None  # only computed for a KL in the reward
    values_R_T: list[list[float]] | None = None  # value model's, before this batch
    returns_R_T: list[list[float]] | None = None  # targets of the value model
    counts: Counter[str] = field(default_factory=Counter)
    sums: dict[str, float] = field(default_factory=dict)  # over trained tokens
    metrics: dict[str, float] = field(default_factory=dict)  # of the batch
    left_out: dict[tuple[int, int] | None, str] = field(
        default_factory=dict
    )  # place -> reason

    @property
    def tokens(self) -> int:
        return sum(len(row.trained) for row in self.rows)


def prepare_parts(
    rows: Sequence[Row],
    settings: ObjectiveSettings,
    version: int,
    *,
    policy: Policy | None = None,
    references: Mapping[str | None, Policy] = NO_REFERENCES,
    critic: ValueModel | None = None,
    baselines: RoleBaselines | None = None,
) -> Prepared:
    """``prepare_batch`` of each environment with its algorithm, and of the rest.

    ``references`` are the models of the KL terms by the setting ``reference_model``.
    What is taken over the batch (a deviation, a norm) is taken over the rows of a part.
    """
    parts = parts_of(settings, [row.environment for row in rows])
    by_name = {
        part.name: prepare_batch(
            [rows[place] for place in part.places],
            part.settings,
            version,
            policy=policy,
            reference=references.get(part.settings.reference_model),
            critic=critic,
            baselines=baselines,
        )
        for part in parts
    }
    return by_name[None] if None in by_name else _whole_batch(by_name)


def _whole_batch(by_name: Mapping[str | None, Prepared]) -> Prepared:
    """The parts as one batch. Rows of a part without a reference have zeros in its place."""
    parts = list(by_name.values())
    rows = [row for part in parts for row in part.rows]

    def chain(lists: Sequence[list[list[float]] | None]) -> list[list[float]] | None:
        whole = [values for values in lists if values is not None]
        if len(whole) < len(lists):
            return None
        return [row_T for values in whole for row_T in values]

    references = [part.reference_R_T for part in parts]
    if any(values is not None for values in references):
        references = [
            [[0.0] * len(row.trained) for row in part.rows] if values is None else values
            for part, values in zip(parts, references)
        ]
    joined = Prepared(
        rows,
        [row_T for part in parts for row_T in part.advantages_R_T],
        reference_R_T=chain(references),
        proximal_R_T=chain([part.proximal_R_T for part in parts]),
        values_R_T=chain([part.values_R_T for part in parts]),
        returns_R_T=chain([part.returns_R_T for part in parts]),
        counts=sum((part.counts for part in parts), Counter()),
        left_out={place: why for part in parts for place, why in part.left_out.items()},
    )
    for name, part in by_name.items():
        for metric, total in part.sums.items():
            joined.sums[metric] = joined.sums.get(metric, 0.0) + total
            # Sums are divided by the tokens of the batch, and the mean over the part is wanted.
            joined.sums[f"{metric}/{name}"] = total * joined.tokens / max(1, part.tokens)
    return joined


def prepare_batch(
    rows: Sequence[Row],
    settings: ObjectiveSettings,
    version: int,
    *,
    policy: Policy | None = None,
    reference: Policy | None = None,
    critic: ValueModel | None = None,
    baselines: RoleBaselines | None = None,
) -> Prepared:
    """Advantages and helper scores of a batch.

    Args:
        rows: of the whole batch, also rows that only count in the baseline of their group.
        version: of the policy that is about to be trained.
        baselines: of roles, which the batch moves; for the estimator role.
        policy: as it is before the first step; a KL in the reward needs it.

    Raises:
        InvalidGroup: a reward is not a number.
        ConfigError: kl_coef is set without a reference model and without ``ref_logprobs`` of
            the environment.
    """
    scalars_R = estimators.compute(
        [row.reward for row in rows],
        [row.group for row in rows],
        settings,
        lengths=[len(row.trained) for row in rows],
        finish_reasons=[row.finish_reason for row in rows],
        normalise=False,  # per token, below, after a KL in the reward
        roles=[f"{row.environment or ''}/{row.role}" for row in rows],
        baselines=baselines,
    )
    counts: Counter[str] = Counter()
    left_out: dict[tuple[int, int] | None, str] = {}
    kept = _in_loss(rows, scalars_R, settings, version, counts, left_out)
    prepared = Prepared([row for row, _ in kept], [], counts=counts, left_out=left_out)
    lengths_R = [len(row.trained) for row in prepared.rows]

    token_rewards_R_T = None
    if settings.kl_coef > 0:
        prepared.reference_R_T = reference_logprobs(prepared.rows, reference)
    if settings.kl_coef > 0 and settings.kl_in == "reward":
        assert policy is not None
        prepared.proximal_R_T = policy.trained_logprobs(prepared.rows)
        kl_R_T = _kl_to_reference(prepared, settings)
        token_rewards_R_T = [[-settings.kl_coef * x for x in kl_T] for kl_T in kl_R_T]
    if critic is not None:
        prepared.values_R_T = critic.trained_values(prepared.rows)
    prepared.advantages_R_T, returns_R_T = token_advantages(
        [scalar for _, scalar in kept],
        lengths_R,
        settings,
        token_rewards_R_T=token_rewards_R_T,
        values_R_T=prepared.values_R_T,
    )
    prepared.returns_R_T = returns_R_T if critic is not None else None
    if estimators.normalises(settings):
        by_group = settings.advantage_norm == "group"
        prepared.advantages_R_T = estimators.normalise_tokens(
            prepared.advantages_R_T, [row.group for row in prepared.rows] if by_group else ()
        )
    prepared.advantages_R_T = [
        _of_environment(row, ours) for row, ours in zip(prepared.rows, prepared.advantages_R_T)
    ]
    return prepared


def _in_loss(
    rows: Sequence[Row],
    scalars_R: Sequence[float],
    settings: ObjectiveSettings,
    version: int,
    counts: Counter[str],
    left_out: dict[tuple[int, int] | None, str],
) -> list[tuple[Row, float]]:
    """Rows in the loss with their advantage; ``left_out`` gets the reasons of the rest."""
    informative = [True] * len(rows)
    if settings.dynamic_filter:
        informative = estimators.has_varied_rewards(
            [r.reward for r in rows], [r.group for r in rows]
        )
    refused = _refused_groups(rows, settings)
    kept = []
    for row, scalar, varies in zip(rows, scalars_R, informative):
        if not row.in_loss or not row.trained:
            left_out[row.place] = "untrained" if row.in_loss else "too_long"
        elif row.group in refused:
            counts["rows_filtered_by_group_filter"] += 1
            left_out[row.place] = "group_filter"
        elif not varies and row.own_advantages is None:
            counts["rows_filtered_equal"] += 1
            left_out[row.place] = "equal_rewards"
        elif settings.mask_truncated and row.finish_reason == TRUNCATED:
            counts["rows_filtered_truncated"] += 1
            left_out[row.place] = "truncated"
        elif (fresh := _fresh(row, settings, version, counts)).trained:
            kept.append((fresh, scalar))
        else:
            left_out[row.place] = "stale"
    return kept


def _refused_groups(rows: Sequence[Row], settings: ObjectiveSettings) -> set[str]:
    """Groups for which the function of ``group_filter`` returns false."""
    if settings.group_filter is None:
        return set()
    own = plugins.load_plugin(plugins.FILTER, settings.group_filter)
    groups = rows_by_group([row.group for row in rows])
    return {
        str(group)
        for group, places in groups.items()
        if not own([rows[i] for i in places], settings)
    }


def _fresh(row: Row, settings: ObjectiveSettings, version: int, counts: Counter[str]) -> Row:
    if settings.max_token_staleness is None:
        return row
    fresh = without_stale_tokens(row, version, settings.max_token_staleness)
    counts["tokens_filtered_stale"] += len(row.trained) - len(fresh.trained)
    return fresh


def reference_logprobs(rows: Sequence[Row], reference: Policy | None) -> list[list[float]]:
    """Logprobs of the reference, or the environment's where a row has ``ref_logprobs``.

    Raises InvalidGroup: an environment's is no logprob, as the mark of masked tokens, 1.
    """
    missing = [row for row in rows if row.ref_logprobs is None]
    if missing and reference is None:
        names = ", ".join(sorted({row.environment or "unnamed" for row in missing}))
        raise ConfigError(
            f"environment {names}: kl_coef needs a reference model, but none was loaded and rows"
            " come without ref_logprobs"
        )
    scored = iter(reference.trained_logprobs(missing) if reference and missing else [])
    return [
        next(scored) if row.ref_logprobs is None else _sent_reference(row, row.ref_logprobs)
        for row in rows
    ]


def _sent_reference(row: Row, logprobs: Sequence[float]) -> list[float]:
    logprobs_T = at_trained(row, logprobs)
    for value in logprobs_T:
        if not value <= MAX_LOGPROB:  # also NaN
            raise InvalidGroup(
                "ref_logprobs",
                row.place_in_errors,
                f"{value:g} at a trained token is no logprob: send the reference's logprob of"
                " every trained token, or leave the field out and set reference_model",
            )
    return logprobs_T


def _kl_to_reference(prepared: Prepared, settings: ObjectiveSettings) -> list[list[float]]:
    """KL(proximal || reference) of each sampled token, (R, T); its sum goes to the metrics.

    Computed from the trainer's logprobs and not the sampler's, whose rounding would count as a
    KL: for equal weights in bfloat16 0.0018 nats per token, a penalty on length.
    """
    kl_R_T = []
    for proximal_T, reference_T in zip(
        prepared.proximal_R_T or [], prepared.reference_R_T or []
    ):
        ours, reference = torch.tensor(proximal_T), torch.tensor(reference_T)
        kl_R_T.append(kl.penalty(ours, reference, settings.kl_estimator).tolist())
    prepared.sums["kl_reference"] = sum(map(sum, kl_R_T))
    return kl_R_T


def _of_environment(row: Row, ours_T: list[float]) -> list[float]:
    """Zeros by ``set_advantage_to_zero``, else the row's own advantages, else ``ours_T``."""
    if row.zero_advantage:
        return [0.0] * len(ours_T)
    return at_trained(row, row.own_advantages) if row.own_advantages is not None else ours_T


def minibatches(rows: Sequence[Row], count: int) -> list[list[int]]:
    """Indices of ``count`` parts of about equal tokens; fewer if rows are few.

    Deterministic, so a restarted trainer cuts the same batch alike.
    """
    count = min(count, len(rows))
    if count <= 1:
        return [list(range(len(rows)))]
    lengths = [len(row.tokens) for row in rows]
    return [sorted(part) for part in pack_ffd(lengths, sum(lengths), min_groups=count)]


def part_of(prepared: Prepared, indices: Sequence[int]) -> Prepared:
    """``prepared`` restricted to the rows ``indices``."""

    def pick(lists: list[list[float]] | None) -> list[list[float]] | None:
        return None if lists is None else [lists[i] for i in indices]

    return replace(
        prepared,
        rows=[prepared.rows[i] for i in indices],
        advantages_R_T=[prepared.advantages_R_T[i] for i in indices],
        reference_R_T=pick(prepared.reference_R_T),
        proximal_R_T=pick(prepared.proximal_R_T),
        values_R_T=pick(prepared.values_R_T),
        returns_R_T=pick(prepared.returns_R_T),
    )
