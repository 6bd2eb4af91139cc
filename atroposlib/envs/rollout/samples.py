"""The samples of one group: drawn at once, drawn again where one failed, never scored 0.

    sample --score--> row of the group
       |--None, or no score--> drawn again         counted as no_score
       '--exception, NaN-----> drawn again         counted by its outcome, such as judge_error

A group shares as many second draws as it has samples. When they are used up it is short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from atroposlib.envs.rollout.groups import (
    ScoredDataGroup,
    ScoredDataItem,
    collate,
    score_problem,
)
from atroposlib.errors import (
    AtroposError,
    InferenceError,
    InferenceUnavailable,
    RolloutApiError,
    RolloutApiUnavailable,
    RolloutError,
    boundary,
)
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.wire import Outcome

NO_SCORE = "no_score"  # the environment returned nothing for a sample, or a score of None
# First words of the stages in which an answer is judged, as ``boundary(env, item, stage)``
# names them.
JUDGING_STAGES = frozenset({"judge", "reward", "score", "postprocess_histories"})
Draw = Callable[[Any], Awaitable[tuple[ScoredDataItem | None, list[Any]]]]


class IncompleteGroup(AtroposError):
    """Too few samples of an item have a score; its cause is the last failure, if one failed."""


def outcome_of(error: AtroposError) -> Outcome:
    """What the samples ended in that ``error`` stopped, in the words of the record."""
    cause = error.__cause__ if isinstance(error, RolloutError) else error
    if isinstance(cause, (InferenceError, RolloutApiError, ConnectionError)):
        return "infra_error"
    if isinstance(cause, (TimeoutError, asyncio.TimeoutError)):
        return "timeout"
    if isinstance(error, RolloutError) and error.stage.split()[0] in JUDGING_STAGES:
        return "judge_error"
    return "env_error"


def is_infrastructure(error: AtroposError) -> bool:
    """Whether a server's absence explains ``error``: waiting may help, another item will not."""
    cause: BaseException | None = error
    while isinstance(cause, (IncompleteGroup, RolloutError)):
        cause = cause.__cause__
    return isinstance(cause, (InferenceUnavailable, RolloutApiUnavailable, ConnectionError))


async def collect_group(
    sample: Draw,
    item: Any,
    group_size: int,
    failed: Callable[[str], None] = lambda outcome: None,
) -> tuple[ScoredDataGroup, list[Any]]:
    """Draw ``group_size`` samples of ``item`` at once; one without a score is drawn again.

    ``failed`` is told what each failed sample ended in.

    Raises:
        IncompleteGroup: the second draws were used up; what is still being drawn is cancelled.
    """
    drawing = _Drawing(sample, item, redraws=group_size, failed=failed)
    # A sibling left running would go on sampling for a group that is given up.
    drawn = await gather_or_cancel(drawing.one() for _ in range(group_size))
    items = [one for one in drawn if one is not None]
    if len(items) < group_size:
        raise IncompleteGroup(f"{len(items)} of {group_size} samples have a score")
    return collate(items), drawing.backlog


class _Drawing:
    """The samples of one group and the second draws they share."""

    def __init__(
        self, sample: Draw, item: Any, *, redraws: int, failed: Callable[[str], None]
    ) -> None:
        self._sample = sample
        self._item = item
        self._redraws = redraws
        self._failed = failed
        self.backlog: list[Any] = []

    async def one(self) -> ScoredDataItem | None:
        """A sample with a score; None when there is none and nothing may be drawn again."""
        while True:
            error: AtroposError | None = None
            try:
                drawn = await self._draw()
                if drawn is not None:
                    return drawn
                self._failed(NO_SCORE)
            except AtroposError as problem:
                error = problem
                self._failed(outcome_of(problem))
            if self._redraws == 0:
                if error is not None:
                    raise IncompleteGroup(f"no second draw is left: {error}") from error
                return None
            self._redraws -= 1

    async def _draw(self) -> ScoredDataItem | None:
        with boundary("sample", self._item, "collect_trajectory"):
            drawn, more = await self._sample(self._item)
        self.backlog.extend(more or [])
        if drawn is None or drawn.get("scores") is None:
            return None
        with boundary("sample", self._item, "score"):
            if (problem := score_problem(drawn)) is not None:
                raise ValueError(problem)
        return drawn
