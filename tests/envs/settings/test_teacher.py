"""The teacher's settings: from a file, from flags, refused with their place; the key is not shown."""

from __future__ import annotations

import pytest

from atroposlib.envs.base import BaseEnvConfig
from atroposlib.envs.cli import read_settings
from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.errors import ConfigError
from tests.envs.toys import ToyEnv


def settings_of(tmp_path, text, *words):
    path = tmp_path / "env.yaml"
    path.write_text(text)
    return read_settings(ToyEnv, ["process", "--config", str(path), *words]).env


def test_a_file_names_a_teacher(tmp_path):
    env = settings_of(
        tmp_path, "env:\n  teacher: {base_url: http://t:1/v1, top_k: 16, api_key: secret}\n"
    )
    teacher = env.teacher
    assert (teacher.base_url, teacher.top_k, teacher.model) == ("http://t:1/v1", 16, "default")
    assert not teacher.is_policy and teacher.urls == ["http://t:1/v1"]
    assert teacher.api_key.get_secret_value() == "secret"
    assert "secret" not in repr(env) + str(env.model_dump(mode="json"))


def test_a_flag_names_a_teacher_as_json(tmp_path):
    env = settings_of(tmp_path, "env: {}\n", '--env.teacher={"base_url": "policy"}')
    assert env.teacher.is_policy and env.teacher.top_k == 0


def test_without_the_setting_there_is_no_teacher():
    assert BaseEnvConfig().teacher is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{top_k: 4}", "teacher.base_url"),
        ("{base_url: u, topk: 4}", "teacher.topk"),
        ("{base_url: u, server_type: openai}", "teacher.server_type"),
        ("{base_url: u, timeout_s: 0}", "teacher.timeout_s"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(tmp_path, text, named):
    with pytest.raises(ConfigError) as refused:
        settings_of(tmp_path, f"env:\n  teacher: {text}\n")
    assert named in str(refused.value)


def test_several_servers_hold_a_teacher():
    assert TeacherSettings(base_url=["http://a/v1", "http://b/v1"]).urls == [
        "http://a/v1",
        "http://b/v1",
    ]
