"""Combinations of a section ``sweep``, the names of their folders, and mistakes in it."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.settings.yaml_file import read_yaml
from example_trainer.launch.sweep.combinations import combinations_of, setting_texts


@pytest.fixture
def combine(tmp_path):
    path = tmp_path / "run.yaml"

    def read(text):
        path.write_text(text)
        settings = read_yaml(path)
        return combinations_of(settings.values["sweep"], settings.places)

    return read


def test_lists_make_every_combination_with_the_last_key_fastest(combine):
    combinations = combine("sweep:\n  lr: [1e-5, 2e-5]\n  optim.seed: [0, 1, 2]\n")
    assert [entry.name for entry in combinations] == [
        f"lr={lr},seed={seed}" for lr in ("1e-05", "2e-05") for seed in range(3)
    ]
    last = combinations[-1].settings
    assert [(entry.key, entry.value) for entry in last] == [("lr", 2e-5), ("optim.seed", 2)]
    assert last[0].place.endswith("run.yaml:2: sweep.lr")
    assert [*setting_texts(combinations[0])] == ["lr=1e-05", "optim.seed=0"]


def test_a_list_of_settings_makes_these_combinations(combine):
    combinations = combine("sweep:\n - {lr: 1e-5, seed: 0}\n - {lr: 2e-5}\n")
    assert [entry.name for entry in combinations] == ["lr=1e-05,seed=0", "lr=2e-05"]
    assert combinations[1].settings[0].place.endswith("run.yaml:3: sweep.1.lr")


def test_nested_keys_are_keys_with_dots(combine):
    sections = "{0: {env: {group_size: [4, 8]}}, 1: {env: {group_size: [2]}}}"
    first, second = combine(f"sweep: {{environments: {sections}}}")
    key = "environments.{}.env.group_size"
    assert [entry.key for entry in first.settings] == [key.format(0), key.format(1)]
    assert second.name == f"{key.format(0)}=8,{key.format(1)}=2"


def test_a_name_is_safe_and_has_a_digest_where_it_does_not_say_all(combine):
    a, b, c, d = combine("sweep: {model_name: [a/b, a-b, '../..'], x: [{y: [1, 2]}]}")[:4] + (
        combine(f"sweep: {{x: [{'a' * 300}]}}")
    )
    names = [entry.name for entry in (a, b, c, d)]
    assert names[0].startswith("model_name=a-b,x=") and "~" in names[0]
    assert len({*names}) == 4 and not any("/" in name for name in names)
    assert len(names[3]) == 107
    assert combine("sweep: {on: [true, null, 1.5, text]}")[0].name == "on=true"


def test_the_same_section_names_the_same_folders(combine):
    text = "sweep: {model_name: [a/b, {c: d}]}"
    assert combine(text) == combine(text)


@pytest.mark.parametrize(
    "section, problem",
    [
        ("3", "run.yaml:1: sweep should be {key: [values]}, or a list of {key: value}"),
        ("{lr: 3}", "run.yaml:1: sweep.lr should be a list of values, not 3"),
        ("{lr: []}", "run.yaml:1: sweep.lr should be a list of values, not []"),
        ("{}", "run.yaml:1: sweep has 1 combinations: write 1 to 1000 of at least a setting"),
        ("[]", "run.yaml:1: sweep has 0 combinations"),
        ("[{lr: 1}, {}]", "run.yaml:1: sweep has 2 combinations"),
        ("{lr: [1, 1]}", "run.yaml:1: sweep has the combination lr=1 2 times"),
        ("{out: [a, b]}", "run.yaml:1: sweep.out: each run has out of its own: take it out"),
        ("{sweep.lr: [a]}", "sweep.sweep.lr: each run has sweep.lr of its own"),
    ],
)
def test_a_mistake_in_the_section_has_its_file_and_line(combine, section, problem):
    with pytest.raises(ConfigError) as refused:
        combine(f"sweep: {section}\n")
    assert problem in str(refused.value)
