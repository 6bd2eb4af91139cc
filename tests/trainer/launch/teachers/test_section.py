"""Sections of servers: what a teacher has, and what it has not."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.teachers.section import (
    InferenceSection,
    ServerSection,
    TeacherSection,
)
from tests.trainer.launch.launch_plans import plan


def test_a_teacher_has_every_setting_of_a_server_but_those_of_a_run():
    common = ServerSection.model_fields.keys()
    assert TeacherSection.model_fields.keys() - common == {"model"}
    assert InferenceSection.model_fields.keys() - common == {"count", "min_ready", "model"}


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("teachers.big.engine=local", "teachers.big.model"),
        ("teachers.big={model: M, count: 2}", "teachers.big.count"),
    ],
)
def test_a_teacher_without_a_model_and_an_unknown_setting_are_refused(word, problem):
    with pytest.raises(ConfigError, match=problem):
        plan(word)
