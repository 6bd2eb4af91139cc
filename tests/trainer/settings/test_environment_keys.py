"""Every setting of an environment by a word of the command line, by number and by name."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.__main__ import parse
from example_trainer.launch.plan import read_plan
from example_trainer.settings.environment_keys import environment_label
from example_trainer.settings.files import parse_override

FILE = """
environments:
  - {script: sums.py, config: {env: {group_size: 8}, openai: [{timeout: 1}, {timeout: 2}]}}
  - {script: words.py, name: spell.it, args: [--a, --b]}
"""


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(FILE)

    def environments(*words):
        found = read_plan([str(path)], [parse_override(word) for word in words])
        return found.environments

    return environments


@pytest.mark.parametrize(
    "word",
    ["environments.0.env.x=1", "environments.sums.env.x=1", "environments.0.config.env.x=1"],
)
def test_a_setting_of_an_environment_is_reached_by_number_and_by_name(read, word):
    first, second = read(word)
    assert first.config["env"] == {"group_size": 8, "x": 1} and first.env == {}
    assert second.config == {}


def test_a_name_with_dots_is_the_longest_that_fits(read):
    assert read("environments.spell.it.env.seed=4")[1].config == {"env": {"seed": 4}}


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "http_proxy", "NO_PROXY"])
def test_a_name_of_capitals_or_of_a_proxy_is_a_variable_of_the_process(read, name):
    first, _ = read(f"environments.0.env.{name}='4'")
    assert first.env == {name: "4"} and first.config["env"] == {"group_size": 8}


def test_further_sections_and_items_of_lists_are_reached(read):
    words = ("environments.0.openai.1.timeout=9", "environments.1.args.0=--c")
    first, second = read(*words, "environments.0.rubric.weight=2", "environments.1.count=3")
    assert first.config["openai"] == [{"timeout": 1}, {"timeout": 9}]
    assert first.config["rubric"] == {"weight": 2}
    assert (second.args, second.count) == (["--c", "--b"], 3)


@pytest.mark.parametrize(
    "word, problem",
    [
        ("environments.sumz.env.x=1", "no environment is sumz; did you mean sums?"),
        ("environments.2.env.x=1", "no environment is 2; there are 0 (sums), 1 (spell.it)"),
        ("environments.0.scipt=a", "is no setting; did you mean environments.0.script?"),
        (
            "environments.0.group_size=8",
            "is no setting; settings of the environment are environments.0.env.NAME",
        ),
        ("environments.0.count=many", "should be a whole number, not 'many'"),
        ("environments.1.args.2=--c", "the list has 2 items, from 0 to 1"),
    ],
)
def test_a_mistake_is_named_under_the_word_as_it_was_typed(read, word, problem):
    with pytest.raises(ConfigError) as refused:
        read(word)
    text, key = str(refused.value), word.partition("=")[0]
    assert text.startswith(f"command line: {key}") and problem in text


def test_a_name_that_two_environments_have_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("environments: [{script: a.py}, {script: b.py, name: a}]\n")
    with pytest.raises(ConfigError, match=r"several environments are a: 0 \(a\), 1 \(a\)"):
        read_plan([str(path)], [parse_override("environments.a.env.x=1")])
    read_plan([str(path)], [parse_override("environments.1.env.x=1")])


def test_files_and_overrides_stand_between_flags_in_any_order():
    args = parse(["local", "a.yaml", "--no-live", "lr=1", "--config", "b.yaml", "x=c.yaml"])
    assert (args.config, args.overrides) == (["b.yaml", "a.yaml"], ["lr=1", "x=c.yaml"])
    assert not args.live and args.log_level == "info"


def test_the_label_of_an_environment_is_its_name_or_that_of_its_program():
    assert environment_label({"name": "a", "script": "b.py"}, 0) == "a"
    assert environment_label({"script": "x/b.py"}, 0) == "b"
    assert environment_label({"command": ["bin/c", "--d"]}, 0) == "c"
    assert environment_label({}, 2) == "environment-2"
