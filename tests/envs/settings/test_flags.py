"""Flags of settings models: names, values, help page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, create_model

from atroposlib import envs
from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.settings.flags import flag_fields, help_page, parse_value, read_flags
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig
from atroposlib.errors import ConfigError
from atroposlib.generation.configs import APIServerConfig


class Settings(BaseModel):
    group_size: int = Field(default=4, description="rows of a group, 100% of them")
    verbose: bool = False
    words: list[str] | None = None
    either: str | list[str] = ""


FIELDS = {
    name: field
    for prefix in ("env.", "")
    for name, field in create_model(
        "Command", config=(str, ""), **flag_fields(prefix, Settings(group_size=6))
    ).model_fields.items()
}


def test_every_field_is_a_flag_under_its_namespace():
    names = ["group_size", "verbose", "words", "either"]
    assert list(FIELDS) == ["config", *(f"env.{name}" for name in names), *names]
    assert (
        FIELDS["env.group_size"].get_default(call_default_factory=True, validated_data={}) == 6
    )


def test_values_are_read_after_a_space_or_an_equals_sign():
    words = ["--env.group_size", "8", "--words=[1]", "--verbose", "--config", "a.yaml"]
    assert read_flags(words, FIELDS) == {
        "env.group_size": "8",
        "words": "[1]",
        "verbose": True,
        "config": "a.yaml",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--group_sise", "8"], "unknown flag --group_sise"),
        (["--openai.group_size", "8"], r"did you mean --env.group_size"),
        (["8"], "'8' belongs to no flag"),
        (["--verbose", "true", "8"], "'8' belongs to no flag"),
        (["--config"], "path of a YAML file is missing"),
        (["--env.group_size"], "--env.group_size: a value is missing"),
        (["--verbose", "-x"], "'-x' belongs to no flag"),
        (["--env.either", "-x"], "--env.either: a value is missing"),
        (["--either=--"], "--either: a value is missing"),
    ],
)
def test_an_unusable_command_line_names_the_flag(words, message):
    with pytest.raises(ConfigError, match=message):
        read_flags(words, FIELDS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("words", '["a"]', ["a"]),
        ("either", '["a"]', ["a"]),
        ("either", "[a", "[a"),  # no JSON, but the field admits text
        ("group_size", "[1]", "[1]"),  # pydantic rejects it later
        ("group_size", "None", None),
        ("verbose", False, False),
    ],
)
def test_lists_are_json_where_the_field_admits_a_list(name, text, value):
    assert parse_value(name, FIELDS[name].annotation, text) == value


def test_a_list_that_is_no_json_is_refused():
    with pytest.raises(ConfigError, match="--words: .* is not JSON"):
        parse_value("words", FIELDS["words"].annotation, "[1")


def test_the_help_page_shows_the_defaults_of_the_environment():
    fields = {"env.group_size": FIELDS["env.group_size"], "verbose": FIELDS["verbose"]}
    page = help_page("toy.py", "A toy.", {"serve": "run"}, fields)
    assert "rows of a group, 100% of them [6]" in " ".join(page.split())
    assert "--verbose BOOL" in page and "serve: run" in page


OF_NAMESPACES = {
    "env": FunctionEnvConfig.model_fields.keys()
    | TeacherDistillationConfig.model_fields.keys(),
    "openai": APIServerConfig.model_fields.keys(),
    "teacher": APIServerConfig.model_fields.keys(),
}
FLAG = re.compile(r"--([a-z_]+)[.]([a-z_]+)")
# Settings of ready environments that these messages are about.
OF_READY = {"dataset_name", "dataset_path", "sandbox"}


def test_every_flag_in_a_message_of_the_runtime_exists():
    texts = [
        (file.name, node.value)
        for file in Path(envs.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = {(file, *flag) for file, text in texts for flag in FLAG.findall(text)}
    unknown = {
        (file, namespace, name)
        for file, namespace, name in named
        if name not in OF_NAMESPACES.get(namespace, ()) and name not in OF_READY
    }
    assert len(named) > 10 and unknown == set()
