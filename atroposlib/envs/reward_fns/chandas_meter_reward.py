"""Metre reward of Sanskrit verse, scanned by the package ``chandas``."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction

logger = logging.getLogger(__name__)

# Score by the certainty that the classifier reports.
SCORES = {"exact": 1.0, "partial": 0.5, "accidental": 0.25}


@registry.register("chandas_meter")
class ChandasMeterReward(RewardFunction):
    """1.0 for a verse in ``meter``, less where only parts of it are, 0.0 otherwise.

    Without a working ``chandas`` (pip install chandas) every verse gets 0.0, and a warning is
    logged once, because a group of equal scores trains nothing.

    Args:
        meter: part of the metre's name; case and diacritics do not matter.
    """

    def __init__(self, meter: str = "tristubh", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.meter = meter

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        chandas = _chandas()
        if chandas is None:
            return [0.0] * len(completions)
        return [self._score(chandas, self.get_content(text)) for text in completions]

    def _score(self, chandas: Any, verse: str) -> float:
        lines = [line for line in verse.splitlines() if line.strip()]
        if not lines:
            return 0.0
        patterns = chandas.to_pattern_lines(lines)
        by_certainty = chandas.svat_identifier.IdentifyFromPatternLines(patterns)
        wanted = _bare(self.meter)
        return max(
            (
                SCORES.get(certainty, 0.0)
                for certainty, metres in by_certainty.items()
                if any(wanted in _bare(str(metre)) for metre in metres)
            ),
            default=0.0,
        )


chandas_meter_reward = ChandasMeterReward.scores


def _bare(name: str) -> str:
    parts = unicodedata.normalize("NFKD", name)
    return "".join(c for c in parts if not unicodedata.combining(c)).lower()


@lru_cache(maxsize=1)
def _chandas() -> Any:
    try:
        return import_module("chandas")
    except (ImportError, OSError) as error:  # a wheel without its tables fails at the import
        logger.warning("chandas_meter scores everything 0.0: chandas does not load: %s", error)
        return None
