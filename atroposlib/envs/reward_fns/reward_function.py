"""Base class of rewards: a score per completion.

    compute(completions, **columns of the item) -> [score or None, ...]
    calling it: compute, check, times ``weight``, log

None is the absence of a score; a sample without a score is not trained on. A failure is never a
score: an exception of ``compute``, or a result that is not a finite number (or None) per
completion, becomes a ``RolloutError`` with the reward's name. The rollout then fails, and the
reason is counted.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import boundary

Scores = list[float | None]


class RewardFunction(ABC):
    """Base of every reward.

    Args:
        weight: factor of the scores that a call returns.
        name: name of the metrics; the class name in lower case if not given.
        kwargs: kept in ``config``.
    """

    def __init__(self, weight: float = 1.0, name: str | None = None, **kwargs: Any) -> None:
        self.weight = weight
        self._name = name
        self.config = kwargs
        self.wandb_logger: Any = None

    @property
    def name(self) -> str:
        """Name of this reward in metrics and errors."""
        return self._name or type(self).__name__.lower()

    @abstractmethod
    def compute(self, completions: Sequence[Any], **kwargs: Any) -> Sequence[float | None]:
        """Scores of the completions, without the weight; None where there is no score.

        Args:
            completions: each a text or messages, see :meth:`get_content`.
            kwargs: columns of the item, for example ``solution`` and ``ground_truth``: a
                common value for all completions, or a list with a value for each.
        """

    def __call__(self, completions: Sequence[Any], **kwargs: Any) -> Scores:
        """Weighted scores of the completions; None passes through.

        Raises RolloutError: ``compute`` failed, or did not return a score for each completion.
        """
        with boundary(self.name, f"{len(completions)} completions", "reward"):
            scores = _require_scores(self.compute(completions, **kwargs), len(completions))
        weighted = [None if score is None else score * self.weight for score in scores]
        self.log_metrics(scores, weighted)
        return weighted

    @classmethod
    def scores(cls, completions: Sequence[Any], *columns: Any, **kwargs: Any) -> Scores:
        """Unweighted scores by a reward made for this call, as the original's functions.

        ``kwargs`` with the name of a constructor's parameter are options of the reward.
        """
        known = inspect.signature(cls).parameters
        options = {name: kwargs.pop(name) for name in [*kwargs] if name in known}
        scores = cls(**options).compute(completions, *columns, **kwargs)
        return _require_scores(scores, len(completions))

    def set_wandb_logger(self, logger: Any) -> None:
        """Log to ``logger.log(metrics)`` from now on; None stops it."""
        self.wandb_logger = logger

    def log_metrics(
        self, raw_rewards: Sequence[float | None], weighted_rewards: Sequence[float | None]
    ) -> None:
        """Log ``reward/<name>/{mean_raw,mean_weighted,min,max}``; min and max are raw."""
        known = [score for score in raw_rewards if score is not None]
        if self.wandb_logger is None or not known:
            return
        products = [score for score in weighted_rewards if score is not None]
        prefix = f"reward/{self.name}"
        self.wandb_logger.log(
            {
                f"{prefix}/mean_raw": math.fsum(known) / len(known),
                f"{prefix}/mean_weighted": math.fsum(products) / len(products),
                f"{prefix}/min": min(known),
                f"{prefix}/max": max(known),
            }
        )

    @staticmethod
    def get_content(completion: Any) -> str:
        """The assistant's text in a text, a message, a choice or a list of messages.

        In a list the first assistant message counts; "" without an assistant's text.
        """
        if isinstance(completion, str):
            return completion
        if isinstance(completion, Mapping):
            if completion.get("role") == "assistant" and "content" in completion:
                return completion["content"] or ""
            message = completion.get("message")
            return RewardFunction.get_content(message) if isinstance(message, Mapping) else ""
        if isinstance(completion, (list, tuple)):
            for message in completion:
                if isinstance(message, Mapping) and message.get("role") == "assistant":
                    return RewardFunction.get_content(message)
        return ""


def _require_scores(scores: Sequence[float | None], count: int) -> Scores:
    checked = [None if score is None else float(score) for score in scores]
    if len(checked) != count:
        raise ValueError(f"{len(checked)} scores for {count} completions")
    wrong = [score for score in checked if score is not None and not math.isfinite(score)]
    if wrong:
        raise ValueError(f"a score is {wrong[0]}; give None where there is no score")
    return checked


def reference_answers(count: int, *given: Any) -> list[str | None]:
    """The first of ``given`` that is not None, as text for each of ``count`` completions.

    Raises ValueError: a list of neither ``count`` answers nor a single answer.
    """
    first = next((value for value in given if value is not None), None)
    golds = list(first) if isinstance(first, (list, tuple)) else [first]
    if len(golds) == 1:
        golds *= count
    if len(golds) != count:
        raise ValueError(f"{len(golds)} reference answers for {count} completions")
    return [None if gold is None else str(gold) for gold in golds]
