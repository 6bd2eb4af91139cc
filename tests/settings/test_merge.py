"""Settings of several sources: the last value of each, and its place."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import (
    Assignment,
    Settings,
    as_tree,
    assignments_of,
    merge,
    merge_dicts,
)


def test_later_mappings_win_and_nested_mappings_merge_in_the_order_of_the_last_values():
    merged = merge_dicts({"a": 1, "n": {"x": 1, "y": 2}}, {"n": {"x": 3}}, {"a": None})
    assert merged == {"a": None, "n": {"x": 3, "y": 2}}
    assert list(merged) == ["n", "a"] and list(merged["n"]) == ["y", "x"]
    assert merge_dicts({"a": {"x": 1}}, {"a": 2}) == {"a": 2}


def test_a_merged_value_has_the_place_of_the_last_source():
    file = Settings(
        {"api": {"port": 1, "host": "a"}},
        {"api": "run.yaml:1: api", "api.port": "run.yaml:2: api.port"},
        ["a note"],
    )
    words = Settings({"api": {"port": 2}}, {"api.port": "command line: api.port"})
    merged = merge(file, words)
    assert merged.values == {"api": {"port": 2, "host": "a"}} and merged.notes == ["a note"]
    assert merged.place("api.port") == "command line: api.port"
    assert merged.place("api.env.HOME") == "run.yaml:1: api.env.HOME"
    assert merged.place("inference.count") == "inference.count"
    listed = Settings(
        places={"a": "1: a", "a.0.x": "2: a.0.x", "a.1.x": "3", "a.1.y": "4: a.1.y"}
    )
    assert (listed.place("a.y"), listed.place("a.x")) == ("4: a.1.y", "1: a.x")


def test_a_section_that_is_a_value_in_an_earlier_source_is_refused():
    file = Settings({"api": {"env": 5}}, {"api.env": "run.yaml:2: api.env"})
    words = Settings({"api": {"env": {"A": "b"}}}, {"api.env.A": "command line: api.env.A"})
    with pytest.raises(ConfigError, match="^run.yaml:2: api.env should be a section, not 5$"):
        merge(file, words, has_sections=True)
    code = Settings({"api": {"env": 5}})
    assert merge(code, words, has_sections=True).values == words.values
    assert merge(file, words).values == words.values
    assert merge(words, file, has_sections=True).values == file.values


def test_a_mapping_of_indices_changes_items_of_a_list():
    files = {"a": [1, {"b": 2, "c": 3}]}
    assert merge_dicts(files, {"a": {"1": {"b": 4}}}) == {"a": [1, {"b": 4, "c": 3}]}
    assert merge_dicts(files, {"a": {1: 5, "0": 6}}) == {"a": [6, 5]}
    assert files == {"a": [1, {"b": 2, "c": 3}]}
    for mapping in ({"x": 1}, {"2": 1}, {}):
        assert merge_dicts(files, {"a": mapping}) == {"a": mapping}


def test_an_index_beyond_the_end_of_a_list_is_refused_under_its_place():
    file = Settings({"a": [{"b": 1}]}, {"a": "run.yaml:1: a"})
    words = Settings({"a": {"1": {"b": 2}}}, {"a.1.b": "command line: a.1.b"})
    with pytest.raises(ConfigError, match="^command line: a.1.b: the list has 1 items"):
        merge(file, words, has_sections=True)
    below = Settings({"a": {"0": {"b": {"c": 2}}}}, {"a.0.b.c": "command line: a.0.b.c"})
    file.places["a.0.b"] = "run.yaml:2: a.0.b"
    with pytest.raises(ConfigError, match="^run.yaml:2: a.0.b should be a section, not 1$"):
        merge(file, below, has_sections=True)


def test_names_with_dots_are_sections_and_back():
    values = {"api.port": 1, "api.env.A": "b", "out": "runs"}
    tree = {"api": {"port": 1, "env": {"A": "b"}}, "out": "runs"}
    assert as_tree(values) == tree
    settings = Settings(tree, {"api.port": "--port"})
    assert [*assignments_of(settings)] == [
        Assignment("api.port", 1, "--port"),
        Assignment("api.env.A", "b", "api.env.A"),
        Assignment("out", "runs", "out"),
    ]
