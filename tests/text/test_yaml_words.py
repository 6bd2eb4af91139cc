"""One reader of YAML for environments, trainers and runs: words as version 1.2 reads them."""

from __future__ import annotations

import pytest

from atroposlib.envs import environment
from atroposlib.envs.cli import read_settings
from atroposlib.errors import ConfigError
from atroposlib.text.yaml_words import parse_yaml
from example_trainer.settings.yaml_reader import load_yaml


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


@pytest.mark.parametrize("read", [load_yaml, of_environment])
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
