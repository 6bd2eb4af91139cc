"""Rows as the samples of other trainers.

prompt        tokens before the first trained token
completion    the rest; the environment's tokens in it are masked
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.wire import MASKED, ScoredData
from example_trainer.data.rows import Row, TrainingBatch


@dataclass(frozen=True)
class TwoParts:
    """A row in two parts. Of the completion, (C,): 1 in ``mask`` for a trained token, its logprob."""

    prompt: list[int]  # (P,)
    completion: list[int]  # (C,), never empty
    mask: list[int]
    logprobs: list[float]  # sampler's; 0 where the mask is 0


def two_parts_of(row: Row) -> TwoParts:
    """The row in two parts; without a label its last token is the completion.

    A row that is left out of the loss is parted at the same place: a trainer bounds its prompts.
    """
    kept = _kept_tokens(row)
    first = row.trained[0] if row.trained else len(kept) - 1  # position j predicts token j + 1
    start = first + 1
    logprobs = _where(row, row.behaviour_logprobs)
    return TwoParts(row.tokens[:start], row.tokens[start:], kept[first:], logprobs[first:])


def trl_fields(
    groups: Sequence[ScoredData],
    batch: TrainingBatch,
    group_size: int,
    temperature: float,
) -> dict[str, list[Any]]:
    """The fields of TRL's ``rollout_func`` for a batch, groups side by side.

    A row that is not in ``batch``, for example of a failed rollout, has the score None, which
    TRL leaves out of the baseline, and no trained token.

    Args:
        batch: rows of ``groups``, with their places.
        group_size: ``num_generations`` of TRL, which computes a baseline of so many rows.
        temperature: that TRL divides the logits by.

    Raises:
        ConfigError: a group of another size, or sampled at another temperature.
        InvalidGroup: a group brings its own advantages.
    """
    rows = {row.place: row for row in batch.rows}
    fields: dict[str, list[Any]] = {
        name: []
        for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "recorded_score")
    }
    for number, group in enumerate(groups):
        if len(group.tokens) != group_size:
            raise ConfigError(
                f"a group of {len(group.tokens)} sequences came from environment {group.env_id},"
                f" and num_generations is {group_size}: make group_size and num_generations equal"
            )
        for place, tokens in enumerate(group.tokens):
            row = rows.get((number, place))
            if row is None:
                sample, score = _untrained_tokens(tokens), None
            else:
                _check(row, temperature)
                long = not row.in_loss
                sample, score = (
                    _untrained_tokens(tokens) if long else two_parts_of(row),
                    row.reward,
                )
            fields["prompt_ids"].append(sample.prompt)
            fields["completion_ids"].append(sample.completion)
            fields["logprobs"].append(sample.logprobs)
            fields["env_mask"].append(sample.mask)
            fields["recorded_score"].append(score)
    return fields


def _untrained_tokens(tokens: Sequence[int]) -> TwoParts:
    """Two tokens that cost no memory, and are not trained."""
    return TwoParts([tokens[0]], [tokens[-1]], [0], [0.0])


def _check(row: Row, temperature: float) -> None:
    if row.own_advantages is not None:
        raise InvalidGroup(
            "advantages", f" of group {row.group}", "TRL computes its own; send scores only"
        )
    if not row.names_temperature or row.in_loss is False:
        return
    temperatures = {
        value for value in row.trained_temperatures if abs(value - temperature) > 1e-6
    }
    if temperatures:
        raise ConfigError(
            f"group {row.group} was sampled at temperature {min(temperatures):g}, and TRL scores at"
            f" {temperature:g}: set temperature of GRPOConfig to that of the environment"
        )


# --- records of other trainers, without an import of them --------------------------------


def verl_output(row: Row) -> dict[str, Any]:
    """The fields of verl's ``AgentLoopOutput``; a turn is a run of tokens of the same side."""
    sample = two_parts_of(row)
    labels = [label != MASKED for label in row.labels]
    turns = 1 + sum(on != before for on, before in zip(labels, [False, *labels]))
    versions = _versions(row)
    return {
        "prompt_ids": sample.prompt,
        "response_ids": sample.completion,
        "response_mask": sample.mask,
        "response_logprobs": sample.logprobs,
        "reward_score": row.reward,
        "num_turns": turns,
        "metrics": {},
        "extra_fields": {
            "group": row.group,
            "versions": versions,
            "min_global_steps": min(versions, default=None),
            "max_global_steps": max(versions, default=None),
        },
    }


def slime_sample(row: Row, group_index: int, index: int) -> dict[str, Any]:
    """The fields of slime's ``Sample``; masks and logprobs cover the response."""
    sample = two_parts_of(row)
    return {
        "group_index": group_index,
        "index": index,
        "tokens": row.tokens,
        "response_length": len(sample.completion),
        "reward": row.reward,
        "loss_mask": sample.mask,
        "rollout_log_probs": sample.logprobs,
        "weight_versions": [str(version) for version in _versions(row)],
        "status": "truncated" if row.finish_reason == "length" else "completed",
        "metadata": {"group": row.group},
    }


def skyrl_output(rows: Sequence[Row]) -> dict[str, Any]:
    """SkyRL's ``GeneratorOutput`` of these rows."""
    samples = [two_parts_of(row) for row in rows]
    return {
        "prompt_token_ids": [sample.prompt for sample in samples],
        "response_ids": [sample.completion for sample in samples],
        "rewards": [row.reward for row in rows],
        "loss_masks": [sample.mask for sample in samples],
        "stop_reasons": [row.finish_reason or "stop" for row in rows],
        "rollout_metrics": None,
        "rollout_logprobs": [sample.logprobs for sample in samples],
    }


def prime_rl_sample(row: Row, env_name: str, advantage: float) -> dict[str, Any]:
    """prime-rl's ``TrainingSample``: every list is as long as the tokens, (T,)."""
    mask = [False, *(bool(bit) for bit in _kept_tokens(row))]
    temperatures = row.temperatures or [1.0] * len(row.labels)
    return {
        "token_ids": row.tokens,
        "mask": mask,
        "logprobs": [0.0, *_where(row, row.behaviour_logprobs)],
        "temperatures": [1.0, *_where(row, temperatures, other=1.0)],
        "env_name": env_name,
        "advantages": [
            {"loss": "rl", "values": [advantage if bit else 0.0 for bit in mask], "mask": mask}
        ],
        "reward": row.reward,
    }


def tinker_datum(row: Row, advantage: float) -> dict[str, Any]:
    """Tinker's ``Datum`` for its losses ``importance_sampling`` and ``ppo``, (T - 1,) each."""
    kept = _kept_tokens(row)
    return {
        "model_input": row.tokens[:-1],
        "loss_fn_inputs": {
            "target_tokens": row.tokens[1:],
            "logprobs": _where(row, row.behaviour_logprobs),
            "advantages": [advantage * bit for bit in kept],
        },
    }


def _kept_tokens(row: Row) -> list[int]:
    """1 where a token is trained, (T - 1,)."""
    counts = row.in_loss and not row.zero_advantage
    return [int(counts and label != MASKED) for label in row.labels]


def _where(row: Row, values: Sequence[float], other: float = 0.0) -> list[float]:
    return [value if is_kept else other for value, is_kept in zip(values, _kept_tokens(row))]


def _versions(row: Row) -> list[int]:
    """The policy versions that sampled it, in the order they appear."""
    return list(dict.fromkeys(row.versions[j] for j in row.trained))
