"""Sampled tokens of a rollout as rows, and rollouts as groups. Pure.

    rollout a   row a1  row a2        group 1:  a1  b1      group 2:  a2  (b)
    rollout b   row b1                every group holds a row of every rollout

A conversation that only grows is a single row; a conversation that forks or is rewritten is
several rows with the same score. Groups have the configured size, so each rollout counts once
in every baseline: ``(b)``, the prompt with no trained token, stands for a rollout without a
further row. The rows of a named endpoint are separate groups with the score of that endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.rollout.groups import (
    ScoredDataGroup,
    ScoredDataItem,
    collate,
    from_node,
    mean_metrics,
    row_facts,
)
from atroposlib.generation.proxy.sample_tree import SampleTree
from atroposlib.generation.sessions.sequences import Node, sampled_part
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION

Messages = list[dict[str, Any]]


class Seat(NamedTuple):
    """Rows of an endpoint, and their score; score None: the sample is drawn again."""

    rows: list[ScoredDataItem]
    score: float | None


@dataclass(frozen=True)
class Rollout:
    """A run of the function: unscored rows and the reward. The rows get their score in groups.

    ``facts`` are its ``timings``, ``turns`` and ``tool_calls``.
    """

    rows: list[ScoredDataItem]
    reward: Reward
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_cut_off: bool = False  # it filled the context of the model
    seats: Mapping[str, Seat] = field(default_factory=dict)  # keys: names of the endpoints
    # replies of untrained endpoints, by name
    untrained: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def seat(self, name: str) -> Seat:
        """The endpoint ``name``; "" and unopened endpoints have the score of the rollout."""
        return self.seats.get(name) or Seat([] if name else self.rows, self.reward.score)

    @property
    def first_row(self) -> ScoredDataItem:
        seats = (self.seat(name) for name in ("", *self.seats))
        return next(row for seat in seats for row in seat.rows)

    @property
    def metadata(self) -> dict[str, Any]:
        return {**self.facts, "metrics": metrics_of(self.reward)}


class Recorder:
    """Records the samples of a rollout. Its calls may end in any order."""

    def __init__(self) -> None:
        self.calls: list[Messages] = []  # messages of each call
        self._samples = SampleTree()

    def add(self, messages: Messages, node: Node, sampled: int | None) -> None:
        """Record ``node`` at the end of a call; its last ``sampled`` tokens are new.

        None: the server returned no count, so all trained tokens at the end are new.
        ``messages`` are the sent messages and the reply; [] for a completion.
        """
        end = len(node.tokens)
        trained = next(
            (n for n in range(end) if node.masked_tokens[end - 1 - n] == MASKED), end
        )
        # Placeholder tokens differ in number from the tokens that the server counted.
        sampled = trained if sampled is None else min(sampled, trained)
        self._samples.add(str(len(self.calls)), 0, sampled_part(node, end - sampled))
        self.calls.append(messages)

    def rows(self) -> list[ScoredDataItem]:
        """An unscored row for each history; every sample is trained in a single row."""
        return [
            from_node(row, 0.0, messages=self.calls[int(row.turns[-1].completion_id)] or None)
            for row in self._samples.rows()
        ]


def groups_of(
    rollouts: Sequence[Rollout],
    group_id: str,
    *,
    with_messages: bool = False,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> list[ScoredDataGroup]:
    """Groups of an item: for each endpoint as many as the largest number of rows in a rollout.

    ``about`` is added to the metadata of each. The first group's metrics are the means over the
    rollouts of the named rewards (by row: ``named_rewards``) and of ``reward``, the score: a
    rollout of many rows counts once.
    """
    groups: list[ScoredDataGroup] = []
    means = mean_metrics(metrics_of(rollout.reward) for rollout in rollouts)
    names = dict.fromkeys(["", *(name for rollout in rollouts for name in rollout.seats)])
    seats_of = [(name, [rollout.seat(name) for rollout in rollouts]) for name in names]
    for name, turn, seats in (
        (name, turn, seats)
        for name, seats in seats_of
        for turn in range(max(len(seat.rows) for seat in seats))
    ):
        rows = [
            seat.rows[turn] if turn < len(seat.rows) else _prompt_row(rollout.first_row)
            for seat, rollout in zip(seats, rollouts)
        ]
        scored = [
            cast(ScoredDataItem, {**row, "scores": seat.score, **_outcome(rollout)})
            for row, seat, rollout in zip(rows, seats, rollouts)
        ]
        # Messages are sent with every row of a group, or with none.
        if not (with_messages and all(row.get("messages") for row in scored)):
            for row in scored:
                row["messages"] = None
        if any(row.get("images") for row in scored):  # a list for every row, or no lists
            scored = [cast(ScoredDataItem, {"images": [], **row}) for row in scored]
        group = collate(scored)
        seat_id = f"{group_id}/{name}" if name else group_id
        group["group_id"] = seat_id if turn == 0 else f"{seat_id}#{turn + 1}"
        named_R = [dict(rollout.reward.metrics) for rollout in rollouts]
        fields = {**about, **({"endpoint": name} if name else {})}
        fields |= {} if groups else {"metrics": means, **_replies_of_untrained(rollouts)}
        facts_R = [row_facts(rollout.metadata, None) for rollout in rollouts]
        group["metadata"] = {**fields, "named_rewards": named_R, "rows": facts_R}
        groups.append(group)
    return groups


def _replies_of_untrained(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """What a replay needs of endpoints without rows: their replies, for each rollout by name."""
    if not any(rollout.untrained for rollout in rollouts):
        return {}
    return {"untrained": [dict(rollout.untrained) for rollout in rollouts]}


def _outcome(rollout: Rollout) -> dict[str, str]:
    return {"outcomes": "truncated"} if rollout.is_cut_off else {}


def scored_row(rollout: Rollout) -> ScoredDataItem:
    """The first row of ``rollout``, with its score and metrics."""
    return cast(
        ScoredDataItem,
        {
            **rollout.first_row,
            "scores": rollout.reward.score,
            "metadata": rollout.metadata,
        },
    )


def metrics_of(reward: Reward) -> dict[str, float]:
    """The named numbers of a reward, and its score, if any, as ``reward``."""
    score = {} if reward.score is None else {"reward": reward.score}
    return {**reward.metrics, **score}


def _prompt_row(row: ScoredDataItem) -> ScoredDataItem:
    """The prompt of ``row``, without trained tokens: a valid row that enters no loss.

    A row with images stays whole: each image has its tokens in it.
    """
    labels = row["masks"]
    first = next((j for j, label in enumerate(labels) if label != MASKED), len(labels))
    length = len(labels) if row.get("images") else max(1, first)
    return cast(
        ScoredDataItem,
        {
            **row,
            "tokens": row["tokens"][:length],
            "masks": [MASKED] * length,
            "inference_logprobs": [MASKED_LOGPROB] * length,
            "versions": None if row.get("versions") is None else [MASKED_VERSION] * length,
            "sampling": None,
            "routed_experts": None,
            "overrides": {"set_advantage_to_zero": True},
        },
    )
