"""Settings of runs: what differs, and which runs differ in the seed only."""

from __future__ import annotations

from pathlib import Path

from atroposlib.settings.merge import Settings
from atroposlib.workbench.run_settings import (
    HIDDEN,
    RecordedSettings,
    differing_settings,
    group_label,
    recorded_settings,
    seed_groups,
    short_names,
)


def run(**values):
    return RecordedSettings({name.replace("__", "."): value for name, value in values.items()})


A = run(trainer__lr="0.1", trainer__seed="0", e__seed="0")
B = run(trainer__lr="0.1", trainer__seed="1", e__seed="1")
C = run(trainer__lr="0.2", trainer__seed="0", e__seed="0", e__size="4")


def test_names_that_differ_are_listed_with_seeds_last():
    assert differing_settings([A, B, C]) == ["trainer.lr", "e.size", "trainer.seed", "e.seed"]
    assert differing_settings([A, A]) == []


def test_names_are_as_short_as_they_are_unambiguous():
    names = short_names(["trainer.lr", "trainer.seed", "e.env.seed", "e.env.size"])
    assert list(names.values()) == ["lr", "trainer.seed", "env.seed", "size"]


def test_runs_that_differ_in_the_seed_only_form_a_group():
    assert seed_groups({"a": A, "b": B, "c": C}, {}) == [["a", "b"], ["c"]]
    other_code = {"b": {"e": {"digest": "sha256:1"}}}
    assert seed_groups({"a": A, "b": B}, other_code) == [["a"], ["b"]]
    unknown = RecordedSettings()
    assert seed_groups({"a": unknown, "b": unknown}, {}) == [["a"], ["b"]]


def test_a_group_is_named_by_what_sets_it_apart():
    names = differing_settings([A, B, C])
    assert group_label([A, B], short_names(names)) == "lr 0.1, size not set"
    assert group_label([C], short_names(names)) == "lr 0.2, size 4"


def test_own_paths_ports_and_secrets_are_left_out_of_values():
    values = {
        "model": "/runs/a/start",
        "beside": "/runs/ab",
        "url": "http://127.0.0.1:4001/v1",
        "files": ["/runs/a/x", 1e-5],
        "openai": {"api_key": "k", "max_token": 3},
    }
    folder = Path("/runs/a")
    places = {"model": "/runs/a/launch/t.yaml:2: model"}
    settings = recorded_settings({"t": Settings(values, places)}, [folder])
    assert settings.values == {
        "t.model": "{run}/start",
        "t.beside": "/runs/ab",
        "t.url": "http://127.0.0.1:*/v1",
        "t.files": '["{run}/x", 1e-05]',
        "t.openai.api_key": HIDDEN,
        "t.openai.max_token": "3",
    }
    assert settings.places["t.model"] == "launch/t.yaml:2"
