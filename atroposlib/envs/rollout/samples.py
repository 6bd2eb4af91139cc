"""Samples of a group: drawn concurrently; failed samples are drawn again, not scored 0.

    sample --score--> row of the group                counted as context_full if that ended it
       |--None, or no score--> drawn again         counted as no_score
       '--exception, NaN-----> drawn again         counted by its outcome, like judge_error

A group has as many second draws as samples. If they do not suffice, the group is short. The
group is given up earlier if as many draws as samples have ended, all by the same mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from atroposlib.envs.rollout.causes import Cause, IncompleteGroup, mistake_of, returned_none
from atroposlib.envs.rollout.groups import (
    ALL_OR_NONE,
    ScoredDataGroup,
    ScoredDataItem,
    collate,
    from_node,
    score_problem,
)
from atroposlib.envs.rollout.token_account import sample_tally
from atroposlib.errors import (
    AtroposError,
    ContextFull,
    InferenceError,
    RolloutApiError,
    RolloutError,
    boundary,
)
from atroposlib.generation.engines.slots import timings
from atroposlib.generation.sessions.recording import recorded_nodes
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.wire import Outcome

NO_SCORE = "no_score"  # the sample, or its score, is None
# First words of the stages (of ``boundary(env, item, stage)``) that score an answer.
JUDGING_STAGES = frozenset({"judge", "reward", "score", "postprocess_histories"})
CONTEXT_FULL = "context_full"  # the sample filled the model's context: trained, and counted
Draw = Callable[[Any], Awaitable[tuple[ScoredDataItem | None, list[Any]]]]


def scored_when_full(sample: Draw, score: float, note: Callable[[str], None]) -> Draw:
    """``sample``, with a row for a conversation that filled the context of the model.

    Otherwise the sample would be drawn again until it is short, and the policy would see no
    long conversation. The row is the last sampled row; a conversation without a sample raises
    ContextFull.
    """

    async def draw(item: Any) -> tuple[ScoredDataItem | None, list[Any]]:
        with recorded_nodes() as nodes:
            try:
                return await sample(item)
            except ContextFull:
                if not nodes:
                    raise
                note(CONTEXT_FULL)
                return cut_off(from_node(nodes[-1], score)), []

    return draw


def cut_off(row: ScoredDataItem) -> ScoredDataItem:
    """``row`` as the last of a rollout that a limit ended."""
    return cast(ScoredDataItem, {**row, "finish_reasons": "length", "outcomes": "truncated"})


def outcome_of(error: AtroposError) -> Outcome:
    """The outcome, as the wire record names it, of samples that ended with ``error``."""
    cause = error.__cause__ if isinstance(error, RolloutError) else error
    if isinstance(cause, ContextFull):
        return "truncated"
    if isinstance(cause, (InferenceError, RolloutApiError, ConnectionError)):
        return "infra_error"
    if isinstance(cause, (TimeoutError, asyncio.TimeoutError)):
        return "timeout"
    if isinstance(error, RolloutError) and error.stage.split()[0] in JUDGING_STAGES:
        return "judge_error"
    return "env_error"


async def collect_group(
    sample: Draw,
    item: Any,
    group_size: int,
    failed: Callable[..., None] = lambda *failure: None,
    code: Callable[..., Any] | None = None,
) -> tuple[ScoredDataGroup, list[Any]]:
    """Draw ``group_size`` samples of ``item`` concurrently; redraw samples without a score.

    ``failed`` is called with the outcome of each failed sample and its error, if there is an
    error. ``code`` is the function of the user that samples and scores, by default ``sample``.
    Raises IncompleteGroup: no second draw is left, or none can help; the remaining samples are
    cancelled.
    """
    drawing = _Drawing(sample, item, group_size, failed, code or sample, redraws=group_size)
    # Cancels the other samples if a sample raises: their group is given up.
    drawn = await gather_or_cancel(drawing.one() for _ in range(group_size))
    items = [item for item in drawn if item is not None]
    if {*drawing.ends} == {NO_SCORE}:
        raise returned_none(drawing.code, group_size)
    if len(items) < group_size:
        raise IncompleteGroup(f"{len(items)} of {group_size} samples have a score")
    return collate(_alike(items)), drawing.backlog


def _alike(items: Sequence[ScoredDataItem]) -> list[ScoredDataItem]:
    """``items``; items of :func:`cut_off` get the optional fields of the remaining items.

    An environment may omit fields that the framework adds to its rows later.
    """
    whole = [item for item in items if item.get("outcomes") != "truncated"]
    if not whole:
        return list(items)
    absent = {name for name in ALL_OR_NONE if any(item.get(name) is None for item in whole)}
    defaults: dict[str, Any] = {} if "messages" in absent else {"messages": []}

    def fit_item(item: ScoredDataItem) -> ScoredDataItem:
        if item.get("outcomes") != "truncated":
            return item
        known = {k: v for k, v in item.items() if k not in absent and v is not None}
        return cast(ScoredDataItem, {**defaults, **known})

    return list(map(fit_item, items))


@dataclass
class _Drawing:
    """The samples of a group and their common second draws."""

    sample: Draw
    item: Any
    group_size: int
    failed: Callable[..., None]
    code: Callable[..., Any]
    redraws: int
    backlog: list[Any] = field(default_factory=list)
    ends: list[Cause | str | None] = field(default_factory=list)  # ends of all draws

    async def one(self) -> ScoredDataItem | None:
        """A sample with a score; None if it has none and no second draw is left."""
        while True:
            error: AtroposError | None = None
            with sample_tally() as tally:
                try:
                    drawn = await self._draw()
                    self.ends.append(NO_SCORE if drawn is None else None)
                    if drawn is not None:
                        tally.keep()
                        return drawn
                    tally.fail(NO_SCORE)
                    self.failed(NO_SCORE)
                except AtroposError as problem:
                    error = problem
                    outcome = outcome_of(problem)
                    tally.fail(outcome)
                    self.failed(outcome, problem)
                    self._note_mistake(problem)
            if self.redraws == 0:
                if error is not None:
                    raise IncompleteGroup(f"no attempt is left: {error}") from error
                return None
            self.redraws -= 1
            await asyncio.sleep(0)  # every sample is drawn once before a second draw

    def _note_mistake(self, error: AtroposError) -> None:
        mistake = mistake_of(error)
        self.ends.append(mistake)
        if mistake and len(self.ends) >= self.group_size and {*self.ends} == {mistake}:
            raise IncompleteGroup(f"all samples failed: {error}", mistake) from error

    async def _draw(self) -> ScoredDataItem | None:
        with (
            boundary("sample", self.item, "collect_trajectory", self.code),
            timings() as spent,
        ):
            drawn, more = await self.sample(self.item)
        self.backlog.extend(more or [])
        if drawn is None or drawn.get("scores") is None:
            return None
        with boundary("sample", self.item, "score", self.code):
            if (problem := score_problem(drawn)) is not None:
                raise ValueError(problem)
        metadata = {"timings": spent, **(drawn.get("metadata") or {})}
        return cast(ScoredDataItem, {**drawn, "metadata": metadata}) if spent else drawn
