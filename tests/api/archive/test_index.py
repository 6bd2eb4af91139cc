"""Tables of the index, and the insert of each kind of record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import (
    DropFact,
    EventFact,
    GroupStates,
    StepFact,
    WeightFact,
)
from atroposlib.errors import ConfigError
from tests.api.archive.rollouts import batch, group, index_of, notes, row


def test_staleness_is_known_only_with_both_versions():
    index = index_of(group(1, [row(version_min=3), row()]))
    assert index.read("SELECT staleness FROM rollout ORDER BY row") == [(2,), (None,)]


def test_a_batch_gives_its_rows_their_number_and_state_and_a_rollup():
    index = index_of(group(1, [row(1.0), row(3.0)]), group(2, [row(5.0)]))
    index.write([batch(7, (1,), "open")])
    assert index.read(
        "SELECT gid, batch_no, state FROM rollout WHERE row = 0 ORDER BY gid"
    ) == [
        (1, 7, "leased"),
        (2, None, "pending"),
    ]
    index.write([batch(7, (1,), "acked")])
    assert index.read("SELECT n, reward, reward_square, tokens FROM rollup") == [(2, 4, 10, 8)]
    assert index.read("SELECT DISTINCT state FROM rollout WHERE gid = 1") == [("acked",)]


def test_a_step_of_the_trainer_names_the_step_of_its_batch_whichever_comes_first():
    index = index_of(group(1, [row()]), batch(7, (1,), "open"))
    index.write([StepFact("trainer", "t", 40, 1.0, {"loss": 0.5}, batch_no=7)])
    index.write([StepFact("trainer", "t", 41, 1.0, {}, batch_no=8), group(2, [row()])])
    index.write([batch(8, (2,), "open")])
    assert index.read("SELECT gid, step FROM rollout ORDER BY gid") == [(1, 40), (2, 41)]


def test_notes_of_the_trainer_change_the_facts_of_their_row():
    index = index_of(group(1, [row(), row()]))
    index.write([notes(1, 7, [0, 1], [None, "clipped"], flags=1, diff_max=[np.nan, 0.5])])
    assert index.read("SELECT row, diff_max, why FROM rollout ORDER BY row") == [
        (0, None, None),
        (1, 0.5, "clipped"),
    ]
    assert index.read("SELECT row, flags FROM note") == [(1, bytes([1]))]


def test_a_group_that_the_ledger_lost_was_reset():
    index = index_of(group(1, [row()]), group(2, [row()]))
    index.write([GroupStates({1: None, 2: ("dropped", None)})])
    assert index.read("SELECT state, why FROM rollout ORDER BY gid") == [
        ("dropped", "reset"),
        ("dropped", None),
    ]


def test_events_give_batches_their_times_and_weights_their_versions():
    index = index_of(
        EventFact("a-1", "batch", 5.0, {"no": 3}),
        EventFact("a-2", "batch", 6.0, {"no": 3}),  # delivered again
        EventFact("a-3", "acked", 7.0, {"no": 3}),
        EventFact("a-4", "policy_version", 8.0, {"version": 2}),
    )
    assert index.read("SELECT no, claimed, acked FROM batch") == [(3, 5.0, 7.0)]
    assert index.read("SELECT server, version, at FROM weights") == [(None, 2, 8.0)]
    assert index.read("SELECT COUNT(*) FROM event") == [(4,)]


def test_reports_of_all_kinds_are_kept():
    index = index_of(
        DropFact("math", "same_scores", 3, 1.0, b"{}"),
        WeightFact("http://a", 4, 2.0),
    )
    for table in ("drop_sample", "weights"):
        assert index.read(f"SELECT COUNT(*) FROM {table}") == [(1,)]


def test_an_index_is_opened_again_with_its_rows(tmp_path):
    first = Index(tmp_path / "archive" / "index.sqlite")
    first.write([group(1, [row()])])
    first.close()
    again = Index(tmp_path / "archive" / "index.sqlite")
    assert again.read("SELECT gid FROM rollout") == [(1,)]
    again.close()


@pytest.mark.parametrize("damage", [b"not a database at all" * 300, None])
def test_a_damaged_or_foreign_index_is_set_aside(tmp_path, damage):
    path = tmp_path / "index.sqlite"
    if damage is None:
        foreign = Index(path)
        foreign.change("PRAGMA user_version = 99")
        foreign.close()
    else:
        path.write_bytes(damage)
    index = Index(path)
    assert index.read("SELECT COUNT(*) FROM rollout") == [(0,)]
    assert path.with_suffix(".damaged").exists()
    index.close()


def test_the_oldest_samples_of_drops_go_beyond_their_bytes():
    index = Index(None, extra_bytes=2000)
    for no in range(1, 6):
        index.write([DropFact("e", f"{no}", 1, 0.0, b"x" * 400)])
    index.write([DropFact("e", "without a sample", 1, 0.0)])
    reasons = [
        reason for (reason,) in index.read("SELECT reason FROM drop_sample ORDER BY id")
    ]
    assert reasons == ["4", "5", "without a sample"]


def test_the_oldest_indexes_of_earlier_runs_go_beyond_their_bytes(tmp_path):
    path = tmp_path / "archive" / "index.sqlite"
    index = Index(path)
    one_copy = _begin_runs(index, path, 1)[0].stat().st_size
    index.close()
    index = Index(path, extra_bytes=2 * (2 * one_copy + one_copy // 2))
    kept = _begin_runs(index, path, 5)
    assert [file.name for file in kept] == [
        "index-000000000041.sqlite",
        "index-000000000051.sqlite",
    ]
    index.close()


def _begin_runs(index, path, runs):
    """The copies after so many runs of 10 groups."""
    for _ in range(runs):
        last = index.begun[0] + 10
        index.write([StepFact("trainer", "t", 1, 1.0, {}, batch_no=1)])
        index.begin_run((last, 0))
    return sorted(path.parent.glob("index-*.sqlite"))


def test_all_files_of_the_index_are_for_their_user_alone(tmp_path):
    path = tmp_path / "archive" / "index.sqlite"
    index = Index(path)
    index.write([StepFact("trainer", "t", 1, 1.0, {}, batch_no=1)])
    files = list(path.parent.iterdir())
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    index.close()


@pytest.mark.parametrize(
    ("is_file", "is_folder"),
    [("archive", None), (None, "archive/index.sqlite"), (".", None)],
    ids=["the folder is a file", "the index is a folder", "the data directory is a file"],
)
def test_a_path_that_cannot_be_an_index_is_named(tmp_path, is_file, is_folder):
    data = tmp_path / "data"
    if is_folder is not None:
        (data / is_folder).mkdir(parents=True)
    else:
        data.parent.mkdir(exist_ok=True)
        if is_file != ".":
            data.mkdir()
        (data / is_file).write_text("")
    with pytest.raises(ConfigError, match=f"{data}.*move that away, or choose another"):
        Index(data / "archive" / "index.sqlite")


def test_an_evaluation_adds_its_numbers_to_those_of_its_step():
    index = index_of()
    index.write([StepFact("trainer", "t", 40, 1.0, {"loss": 0.5}, batch_no=7)])
    index.write([StepFact("trainer", "t", 40, 2.0, {"eval/exact": 0.25})])
    index.write([StepFact("trainer", "t", 0, 2.0, {"eval/exact": 0.0})])  # before any step
    steps = index.read("SELECT step, batch_no, body FROM step ORDER BY step")
    assert [(step, no, json.loads(body)) for step, no, body in steps] == [
        (0, None, {"eval/exact": 0.0}),
        (40, 7, {"loss": 0.5, "eval/exact": 0.25}),
    ]
