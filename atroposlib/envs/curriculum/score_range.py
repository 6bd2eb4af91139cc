"""Range of the scores of an environment, of which success is the part."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from atroposlib.envs.settings.curriculum_settings import CurriculumSettings
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)


class ScoreRange:
    """The score that is no success, and the score that is full success."""

    def __init__(self, floor: float, best: float) -> None:
        self.ends = floor, best
        self._is_warned = False

    def warn_outside(self, scores: Sequence[float], env: str) -> None:
        """Warn once of scores outside, whose differences success does not show."""
        floor, best = self.ends
        if self._is_warned or all(floor <= score <= best for score in scores):
            return
        self._is_warned = True
        logger.warning(
            "%s: scores of %g to %g lie outside of curriculum.floor %g and curriculum.best %g, so"
            " that their success counts as 0 or 1: set both to the range of the scores",
            env,
            min(scores),
            max(scores),
            floor,
            best,
        )


def score_range_of(
    settings: CurriculumSettings, usual: tuple[float, float], env: str
) -> ScoreRange:
    """The range of the settings, by default the ``usual``.

    Raises ConfigError: groups are observed, and the floor is not below the best score.
    """
    floor = usual[0] if settings.floor is None else settings.floor
    best = usual[1] if settings.best is None else settings.best
    if settings.observes and not floor < best:
        raise ConfigError(f"{env}: curriculum.floor {floor:g} has to be below best {best:g}")
    return ScoreRange(floor, best)
