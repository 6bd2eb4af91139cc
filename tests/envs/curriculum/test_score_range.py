"""The range of scores: its order, and scores outside of it."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.score_range import ScoreRange, score_range_of
from atroposlib.envs.settings.curriculum_settings import CurriculumSettings
from atroposlib.errors import ConfigError


def test_scores_outside_are_named_once(caplog):
    scores = ScoreRange(0.0, 1.0)
    scores.warn_outside([], "toy")
    scores.warn_outside([0.0, 1.0], "toy")
    assert not caplog.text
    scores.warn_outside([1000.0, 0.5], "toy")
    scores.warn_outside([-1.0], "toy")
    (line,) = caplog.messages
    assert line.startswith("toy: scores of 0.5 to 1000 lie outside of curriculum.floor 0")


def test_the_floor_of_settings_is_below_the_best_score_where_groups_are_observed():
    assert score_range_of(CurriculumSettings(), (0.0, 1.0), "toy").ends == (0.0, 1.0)
    settings = CurriculumSettings(sampler="pools", floor=-1.0)
    assert score_range_of(settings, (0.0, 1.0), "toy").ends == (-1.0, 1.0)
    assert score_range_of(CurriculumSettings(floor=1.0), (0.0, 1.0), "toy").ends == (1.0, 1.0)
    for floor in (1.0, float("nan")):
        with pytest.raises(ConfigError, match="toy: curriculum.floor .* below best 1"):
            settings = CurriculumSettings(gate="band", floor=floor)
            score_range_of(settings, (0.0, 1.0), "toy")
