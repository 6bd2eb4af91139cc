"""The catalogue: rows of the table, groups over seeds, curves as bands."""

from __future__ import annotations

import pytest

from atroposlib.errors import UnknownGroup
from atroposlib.workbench.catalogue import SCAN_S, Catalogue, curves_document, runs_document
from tests.workbench.made_runs import make_run, step_line


@pytest.fixture
def root(tmp_path):
    for name, lr, seed, rewards in (
        ("a0", 0.1, 0, [0.0, 0.5, 1.0]),
        ("a1", 0.1, 1, [0.0, 0.3, 0.6]),
        ("b0", 0.2, 0, [0.1, 0.1, 0.1]),
    ):
        make_run(tmp_path / name, rewards, lr=lr, seed=seed)
    return tmp_path


@pytest.fixture
def catalogue(root):
    catalogue = Catalogue(root)
    yield catalogue
    catalogue.close()


def test_a_run_has_its_state_figures_and_the_settings_that_differ(root, catalogue):
    document = runs_document(root, catalogue.refresh())
    assert [entry["short"] for entry in document["settings"]] == [
        "lr",
        "env.seed",
        "trainer.seed",
    ]
    first = document["runs"][0]
    assert (first["name"], first["state"], first["line"]) == ("a0", "done", "step 3 of 3")
    assert (first["steps"], first["total"], first["reward"]) == (3, 3, 1.0)
    assert (first["seconds"], first["tokens"], first["live"]) == (6.0, 300, False)
    assert first["settings"]["trainer.lr"] == "0.1"
    assert "secret" not in str(document)
    labels = [(group["label"], len(group["runs"])) for group in document["groups"]]
    assert labels == [("lr 0.1", 2), ("lr 0.2", 1)]


def test_seeds_are_a_mean_with_a_band_or_apart(catalogue):
    entries = catalogue.refresh()
    together = curves_document(entries, "reward_mean", "step", True)
    assert [one["label"] for one in together["series"]] == ["lr 0.1", "b0"]
    band = together["series"][0]["curves"]["reward_mean"]
    assert band[1:] == [(2, 0.4, 0.3, 0.5), (3, 0.8, 0.6, 1.0)]
    apart = curves_document(entries, "", "tokens", False)
    assert [one["label"] for one in apart["series"]] == ["a0", "a1", "b0"]
    assert apart["shown"][0] == "reward_mean" and "completion_tokens" in apart["keys"]


def test_a_run_is_read_again_only_where_its_files_changed(root, catalogue, monkeypatch):
    [entry, *_] = catalogue.refresh()
    rows = entry.rows
    catalogue.refresh()
    assert entry.rows is rows
    with (root / "a0/metrics.jsonl").open("a") as metrics:
        metrics.write(step_line(4, 0.9, 100))
    catalogue.refresh()
    assert len(entry.rows) == 4


def test_new_runs_show_up_and_removed_runs_go_after_a_while(root):
    now = [0.0]
    catalogue = Catalogue(root, lambda: now[0])
    assert len(catalogue.refresh()) == 3
    make_run(root / "c0")
    (root / "a0").rename(root / "renamed")
    assert len(catalogue.refresh()) == 3
    now[0] = SCAN_S
    assert [entry.run.name for entry in catalogue.refresh()] == ["a1", "b0", "c0", "renamed"]
    catalogue.close()


def test_an_unknown_key_is_an_error(catalogue):
    [entry, *_] = catalogue.refresh()
    assert catalogue.entry(entry.run.key) is entry
    with pytest.raises(UnknownGroup, match="no run nothing"):
        catalogue.entry("nothing")
