"""Rows of data sets from files or the hub, and errors that name the option."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import DatasetUnavailable
from atroposlib.utils.datasets import load_rows, split_files

ROWS = [{"q": "one", "a": 1}, {"q": "zwei ü", "a": 2}, {"q": "three", "a": [3, {"b": None}]}]


def write_jsonl(file, rows=ROWS):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_a_file_serves_as_every_split(tmp_path):
    file = write_jsonl(tmp_path / "anything.jsonl")
    assert load_rows("org/set", "train", path=file) == ROWS
    assert load_rows("org/set", "test", path=str(file)) == ROWS


def test_blank_lines_are_skipped_and_limit_keeps_the_first_rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"q": 1}\n\n{"q": 2}\n')
    assert load_rows("org/set", "train", path=file) == [{"q": 1}, {"q": 2}]
    assert load_rows("org/set", "train", path=file, limit=1) == [{"q": 1}]


def test_only_the_named_columns_are_kept(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl")
    rows = load_rows("org/set", "train", path=file, columns=("a", "absent"))
    assert rows == [{"a": row["a"]} for row in ROWS]


def test_json_and_parquet_hold_the_same_rows(tmp_path):
    rows = [{"q": "one", "a": [1, 2]}, {"q": "two", "a": []}]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    assert load_rows("org/set", "train", path=tmp_path / "train.json") == rows
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert load_rows("org/set", "train", path=tmp_path / "rows.parquet") == rows


def test_a_folder_is_searched_for_the_files_of_a_split_in_order(tmp_path):
    for name in (
        "gsm8k_train.jsonl",
        "gsm8k_test.jsonl",
        "constrained.jsonl",
        "train.txt",
        "data/train-00001-of-00002.jsonl",
        "data/train-00000-of-00002.jsonl",
        "data/retrain.jsonl",
    ):
        write_jsonl(tmp_path / name, [{"from": name}])
    assert [row["from"] for row in load_rows("org/set", "train", path=tmp_path)] == [
        "data/train-00000-of-00002.jsonl",
        "data/train-00001-of-00002.jsonl",
        "gsm8k_train.jsonl",
    ]
    assert [file.name for file in split_files(tmp_path, "test")] == ["gsm8k_test.jsonl"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("absent.jsonl", None, "absent.jsonl does not exist"),
        ("rows.csv", "q,a\n", "is read"),
        ("empty.jsonl", "\n", "no rows of split 'train'"),
        ("broken.jsonl", '{"q": 1}\n{"q": \n', "line 2 is not JSON"),
        ("numbers.jsonl", '{"q": 1}\n7\n', "row 1 is not an object but 7"),
        ("object.json", "{}", "one list of objects"),
        ("text.parquet", "not parquet at all", "not a parquet file"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, text, says):
    if text is not None:
        (tmp_path / name).write_text(text)
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(DatasetUnavailable, match=says):
        load_rows("org/set", "train", path=tmp_path / name)


def test_a_missing_split_raises_with_the_expected_file_name(tmp_path):
    write_jsonl(tmp_path / "test.jsonl")
    with pytest.raises(DatasetUnavailable, match=r"org/set.*train\.jsonl.*--env\.rows"):
        load_rows("org/set", "train", path=tmp_path, option="--env.rows")


@pytest.mark.parametrize("limit", [None, 3])
def test_an_unreachable_hub_is_an_error_that_names_the_option(limit):
    pytest.importorskip("datasets")
    with pytest.raises(DatasetUnavailable, match=r"org/set.*set --env\.rows to a \.jsonl"):
        load_rows("org/set", "train", option="--env.rows", limit=limit)
