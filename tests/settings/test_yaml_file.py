"""One reader of YAML for environments, trainers and runs: words as version 1.2 reads them."""

from __future__ import annotations

import pytest

from atroposlib.envs import environment
from atroposlib.envs.cli import read_settings
from atroposlib.errors import ConfigError
from atroposlib.settings.yaml_file import at_home, parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5", 5),
        ("010", "010"),
        ("0", 0),
        ("-3", -3),
        ("1:30", "1:30"),
        ("on", "on"),
        ("~", None),
    ]
    + [("True", True), (".5", 0.5), ("2024-01-01", "2024-01-01"), ("[1, a]", [1, "a"])],
)
def test_plain_words_are_read_by_yaml_1_2(text, value):
    assert parse_yaml(text, "here") == value


@environment([{"id": "1"}])
async def probe(task, model):
    return 1.0


def of_environment(path):
    return read_settings(probe, ["process", "--config", str(path)])


@pytest.mark.parametrize("read", [read_yaml, of_environment])
@pytest.mark.parametrize(
    "text",
    [
        "env:\n  max_tokens: 3\n  max_tokens: 5\n",
        "env: {}\nenv: {}\n",
        "env: {max_tokens: 1, max_tokens: 1}",
        "env: [",
    ],
)
def test_a_key_that_stands_twice_and_text_that_is_no_yaml_are_refused(tmp_path, read, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="twice|not YAML"):
        read(path)


def test_the_file_of_an_environment_has_the_words_of_version_1_2(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("env:\n  max_tokens: 12\n  include_messages: yes\n  wandb_name: 010\n")
    env = of_environment(path).env
    assert (env.max_tokens, env.include_messages, env.wandb_name) == (12, True, "010")


def test_every_key_has_its_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("a: &b\n  c: 1\nd:\n- e: 2\nf: {<<: *b, g: 3}\n")
    settings = read_yaml(path)
    assert settings.values["f"] == {"c": 1, "g": 3}
    lines = {key: int(place.split(":")[-2]) for key, place in settings.places.items()}
    assert lines == {
        "a": 1,
        "a.c": 2,
        "d": 3,
        "d.0": 4,
        "d.0.e": 4,
        "f": 5,
        "f.c": 2,
        "f.g": 5,
    }
    assert settings.places["d.0.e"] == f"{path}:4: d.0.e"


def test_an_empty_file_is_no_setting(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert read_yaml(path).values == {}


@pytest.mark.parametrize("data", [b"- a\n", b"word\n", b"\xff\xfe", b"a: [\n", b"[1]: 2\n"])
def test_a_file_without_a_mapping_of_names_is_refused(tmp_path, data):
    path = tmp_path / "run.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="run.yaml"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_yaml(tmp_path / "absent.yaml")


def test_paths_of_a_yaml_file_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/ann")
    given = {
        "save_path": "~/runs",
        "stop": ["~", "a~/b"],
        "lr": 1e-5,
        "more": [{"dir": "~/x"}],
    }
    assert at_home(given) == {
        "save_path": "/srv/ann/runs",
        "stop": ["~", "a~/b"],
        "lr": 1e-5,
        "more": [{"dir": "/srv/ann/x"}],
    }
