"""CONFIG.md matches the models, and every option is described."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal, Optional

import pytest


@pytest.fixture(scope="module")
def generator(script):
    return script("generate_config")


def test_config_md_is_current(root):
    command = [sys.executable, "scripts/generate_config.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_option_has_a_sentence(generator):
    sections = [*generator.SECTIONS, *generator.environment_sections()]
    silent = [
        f"{section.target}.{name}"
        for section in sections
        for name, field in generator.options(section).items()
        if not field.description
    ]
    silent += [
        f"{title}.{name}"
        for section in generator.SECTIONS
        if section.parts is not None
        for title, model in generator.load(section.parts).items()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert silent == []


def test_a_model_joined_from_parts_shows_each_option_once(generator):
    (section,) = [one for one in generator.SECTIONS if one.title == "Trainer"]
    models = generator.load(section.parts)
    shown = [
        line.split("`")[1]
        for line in generator.joined_tables(section, models)
        if "| `" in line
    ]
    assert sorted(shown) == sorted(generator.load(section.target).model_fields)


def test_every_configuration_of_the_package_has_a_section(generator):
    shown = {section.target.rpartition(":")[2] for section in generator.SECTIONS}
    assert shown >= {
        "APIServerConfig",
        "BaseEnvConfig",
        "Plan",
        "ReasoningConfig",
        "ServerBaseline",
        "ServerManagerConfig",
        "TeacherDistillationConfig",
        "TrainingConfig",
    }


def test_only_options_missing_in_the_original_are_marked_as_new(generator):
    lines = generator.page().splitlines()
    by_option = {line.split("`")[1]: line for line in reversed(lines) if line[:3] == "| `"}
    assert "*New:*" in by_option["api_timeout_s"]
    assert "*New:*" not in by_option["group_size"]


def test_a_subclass_shows_only_the_options_it_adds_or_changes(generator):
    below = generator.Section(
        "",
        "atroposlib.envs.teacher_distillation_env:TeacherDistillationConfig",
        "",
        below="atroposlib.envs.base:BaseEnvConfig",
    )
    assert list(generator.options(below)) == ["teacher_enabled", "teacher_top_k"]


def test_types_are_shown_in_source_notation(generator):
    assert generator.type_text(Optional[int]) == "int | None"
    assert generator.type_text(list[str]) == "list[str]"
    assert generator.type_text(dict[str, float]) == "dict[str, float]"
    assert generator.type_text(Literal["a", "b"]) == "'a' | 'b'"
