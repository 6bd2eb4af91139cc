"""atropos data rescore over a real archive with a planted bug."""

from __future__ import annotations

import json

import pytest

from atroposlib.cli import atropos
from atroposlib.errors import ConfigError
from atroposlib.travel import rescore
from tests.travel.recorded import planted_run

REWARDS = "tests.travel.rewards"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return planted_run(tmp_path_factory.mktemp("planted") / "run")


@pytest.fixture
def rescored_row(run, tmp_path, capsys):
    def call(name, *words):
        files = ("--out", str(tmp_path / "a.jsonl"), "--html", str(tmp_path / "a.html"))
        assert rescore.main([str(run), "--reward", f"{REWARDS}:{name}", *files, *words]) == 0
        lines = (tmp_path / "a.jsonl").read_text().splitlines()
        return capsys.readouterr().out, [json.loads(line) for line in lines]

    return call


def test_a_planted_bug_is_named_by_its_steps(rescored_row):
    text, rows = rescored_row("reward")
    assert "advantages change sign in steps 3-4\n" in text
    assert len(rows) == 32
    wrong = [row for row in rows if row["old_reward"] != row["new_reward"]]
    assert {row["step"] for row in wrong} == {3, 4}
    assert all(row["old_advantage"] * row["new_advantage"] < 0 for row in wrong)


def test_the_archive_is_not_changed(run, rescored_row):
    before = {path: path.read_bytes() for path in run.rglob("*.atr")}
    assert "no advantage changes its sign" in rescored_row("uncertain")[0]
    assert {path: path.read_bytes() for path in run.rglob("*.atr")} == before


def test_failures_are_counted_and_no_line_has_a_number_for_them(rescored_row):
    text, rows = rescored_row("uncertain")
    assert "8 rollouts without a new reward, error: ValueError" in text
    failed = [row for row in rows if row["failure"]]
    assert len(failed) == 16
    assert all(row["new_reward"] is None and row["new_advantage"] is None for row in failed)


def test_text_of_a_failure_cannot_become_html(rescored_row, tmp_path):
    rescored_row("uncertain")
    page = (tmp_path / "a.html").read_text()
    assert "seven \\u003cb\\u003eis" in page and "seven <b>is" not in page


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--step", "3"], 8),
        (["--step", "2..3"], 16),
        (["--sample", "3"], 12),
        (["--env", "sums_0", "--jobs", "2"], 32),
    ],
)
def test_filters_choose_rollouts(rescored_row, words, count):
    assert len(rescored_row("reward", *words)[1]) == count


def test_columns_of_tasks_come_from_a_file(rescored_row, tmp_path):
    items = tmp_path / "items.jsonl"
    numbers = [10 * step + g for step in range(1, 5) for g in range(2)]
    lines = [json.dumps({"id": f"sum{n}", "gold": str(2 * n)}) for n in numbers]
    items.write_text("\n".join(lines))
    rows = rescored_row("of_item", "--items", str(items))[1]
    assert [row["new_reward"] for row in rows] == [1.0, 0.0, 1.0, 0.0] * 8


@pytest.mark.parametrize("line", ["{", "[1]", '{"gold": 1}'])
def test_a_file_of_items_without_ids_is_refused(tmp_path, line):
    (tmp_path / "items.jsonl").write_text(line)
    with pytest.raises(ConfigError, match="--items"):
        rescore.task_columns(tmp_path / "items.jsonl")


def test_a_reward_with_live_needs_ends_with_status_2(run, capsys):
    with pytest.raises(SystemExit) as ended:
        atropos.main(["data", "rescore", str(run), "--reward", f"{REWARDS}:in_sandbox"])
    assert ended.value.code == 2
    assert "needs sandbox" in capsys.readouterr().err


def test_scores_of_a_file_are_read_back(rescored_row, tmp_path):
    rows = rescored_row("reward")[1]
    scores = rescore.read_scores(tmp_path / "a.jsonl")
    assert scores == {(row["gid"], row["row"]): row["new_reward"] for row in rows}
    (tmp_path / "wrong.jsonl").write_text('{"gid": 1}\n')
    with pytest.raises(ConfigError, match="data rescore"):
        rescore.read_scores(tmp_path / "wrong.jsonl")


def test_parquet_holds_the_same_rows(run, tmp_path):
    pytest.importorskip("pyarrow")
    out, page = tmp_path / "a.parquet", tmp_path / "a.html"
    words = ["--out", str(out), "--html", str(page)]
    assert rescore.main([str(run), "--reward", f"{REWARDS}:reward", *words]) == 0
    assert len(rescore.read_scores(out)) == 32
