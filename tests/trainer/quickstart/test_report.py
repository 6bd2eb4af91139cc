from __future__ import annotations

import json
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest

from atroposlib.run_status.heldout import HeldoutSample
from example_trainer.quickstart.__main__ import parse_args
from example_trainer.quickstart.recipes import Recipe, recipe_for
from example_trainer.quickstart.report import (
    LABELS,
    Findings,
    blocks,
    commit,
    next_steps,
    page,
    provenance,
    repeat_command,
    write_report,
)
from example_trainer.quickstart.verdict import judge
from tests.ui.rendered import rendered

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'


ROWS = [
    {
        "step": step,
        "version": step,
        "env/exact": step / 10,
        "reward_mean": step / 10,
        "logprob_mismatch_mean": 1e-5,
        "staleness_mean": 0.0,
        "staleness_max": 0.0,
    }
    for step in range(1, 11)
]


@pytest.fixture
def findings():
    sample = HeldoutSample(0, f"What is {EVIL}?", EVIL, EVIL, 0.05, False)
    answers = [sample, replace(sample, step=10, completion="42", reward=1.0, exact=True)]
    return Findings(
        title=f"quickstart {EVIL}",
        task=f"sums {EVIL}",
        verdict=judge(recipe_for("smollm2", 10), ROWS, server_version=10, seconds=9, cores=2),
        rows=ROWS,
        heldout=[(0, 0.0), (10, 0.9)],
        heldout_rewards=[(0, 0.1), (10, 0.95)],
        answers=[answers, answers[1:]],
        settings={"model": EVIL},
        run=Path("runs/first one"),
        guide=Path(__file__),
        repeat=f"quickstart {EVIL}",
        spent={"training": 10.0},
        notes=[EVIL],
    )


@pytest.fixture
def drawn(findings, tmp_path):
    """The overview and the curves of the page."""
    file = tmp_path / "report.html"
    file.write_bytes(page(findings))
    return rendered(file, "#/", "#/curves")


def test_every_setting_of_a_recipe_has_a_label_or_is_internal(findings):
    internal = {"task", "goal", "bfloat16_pays", "checkpoint_bytes"}
    names = {field.name for field in fields(Recipe)}
    assert names - LABELS.keys() == internal
    chosen = {"bfloat16_pays": True, "ppo_epochs": 2, "trainer.lr": "1e-5"}
    chosen["ensure_scores_are_not_same"] = False
    tables = [b for b in blocks(replace(findings, settings=chosen)) if b["kind"] == "table"]
    rows = tables[-1]["rows"]
    assert rows == [
        ["passes over a batch", "2"],
        ["groups of equal rewards are left out", "no"],
        ["--trainer.lr", "1e-5"],
    ]


def test_model_output_does_not_become_markup(drawn):
    for view in drawn:
        assert not view.tags.keys() & {"script", "img", "iframe", "link", "style"}
    assert drawn[0].text.count(EVIL) >= 6


def test_the_page_loads_nothing(findings, drawn):
    document = page(findings).decode()
    assert "default-src 'none'" in document and "unsafe" not in document
    files = {"samples.jsonl", "metrics.jsonl", "model/", "commands.txt", "logs/"}
    assert drawn[0].addresses == files


def test_the_page_has_every_part(drawn):
    for words in (
        "Learning",
        "Rate of exact answers",
        "exact, held-out problems",
        "mean distance in nats per token",
        "problem step 0 step 10 expected",
        "atropos chat 'runs/first one/model'",
        "atropos env new NAME",
        "held out, exact 0.00 → 0.90",
        "3: 0.300",
        "Where the time went",
        "training 10.0 s",
        "Repeat it",
        "What this shows, and what it does not",
        "It fell short",
        f"model {EVIL}",
    ):
        assert words in drawn[0].words
    assert drawn[0].words.index("Before and after") < drawn[0].words.index("Learning")
    assert drawn[0].nav == ["Overview", "Curves"]


def test_held_out_checks_and_steps_are_two_curves_of_a_chart(drawn):
    exact, reward, mismatch, staleness = drawn[0].charts
    assert [one["curves"] for one in drawn[0].charts] == [2, 2, 1, 2]
    steps, trained, heldout = exact["columns"]
    assert steps == list(range(11)) and trained[:2] == [None, 0.1]
    assert [heldout[0], heldout[10]] == [0.0, 0.9]
    assert exact["scales"]["y"] == {"range": [0, 1]} and mismatch["scales"]["y"]["distr"] == 3


def test_all_metrics_have_curves(drawn):
    assert all(name in drawn[1].text for name in ("env/exact", "reward_mean", "staleness_max"))


def test_a_run_without_a_single_figure_still_has_a_page(tmp_path):
    empty = judge(recipe_for("tiny"), [], server_version=None, seconds=1, cores=1)
    bare = Findings("t", "t", empty, [], [], [], [], {}, Path("r"), Path("none"), "again", {})
    (tmp_path / "report.html").write_bytes(page(bare))
    [overview] = rendered(tmp_path / "report.html", "#/")
    assert "the trainer finished no step" in overview.text


def test_the_guide_is_a_next_step_where_its_file_exists(findings):
    assert next_steps(findings)[-1] == ("read the guide", __file__)
    elsewhere = next_steps(replace(findings, guide=Path("none")))
    assert [what for what, _ in elsewhere] == [
        "talk to the trained model",
        "look at every rollout",
        "write your own environment",
    ]


def test_report_and_summary_are_written_into_the_run(findings, plan):
    chosen = plan()
    chosen.options.out.mkdir()
    report = write_report(findings, chosen)
    summary = json.loads((chosen.options.out / "summary.json").read_text())
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert summary["exact_last"] == pytest.approx(0.8)
    assert summary["line"].startswith("quickstart: exact 0.10 -> 0.80")


def test_the_command_starts_the_same_run_again(tmp_path):
    given = ["--model", "tiny", "--seed", "7", "--steps", "3", "--environment", "my sums.py"]
    words = repeat_command(parse_args(given))
    assert words.startswith("python -m atroposlib.quickstart --model tiny --engine local")
    assert "--seed 7 --steps 3 --environment" in words
    assert words.endswith("my sums.py'")


def test_the_commit_is_that_of_the_checkout(tmp_path):
    assert commit(tmp_path) == "none: not a checkout"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    assert len(commit(tmp_path)) == 12


def test_the_versions_and_the_machine_are_named():
    found = provenance(Path("/"))
    assert found["packages"].startswith("atroposlib ")
    assert all(found.values())
