from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from atroposlib.run_status.heldout import HeldoutSample
from example_trainer.quickstart.__main__ import parse_args
from example_trainer.quickstart.recipes import recipe_for
from example_trainer.quickstart.report import (
    Findings,
    commit,
    next_steps,
    page,
    provenance,
    repeat_command,
    write_report,
)
from example_trainer.quickstart.verdict import judge

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


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def parsed(document):
    tags = Tags()
    tags.feed(document)
    return tags


def test_model_output_does_not_become_markup(findings):
    document = page(findings)
    tags = parsed(document)
    assert "script" not in tags.tags
    assert "img" not in tags.tags
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in document


def test_the_page_loads_nothing_and_allows_no_script(findings):
    document = page(findings)
    assert "default-src &#39;none&#39;" in document
    tags = parsed(document)
    assert not any(name == "src" for name, _ in tags.attributes)
    links = {value for name, value in tags.attributes if name == "href"}
    assert links == {"samples.jsonl", "metrics.jsonl", "model/", "commands.txt", "logs/"}
    assert "link" not in tags.tags
    assert "url(" not in document
    assert "@import" not in document


def test_the_page_has_every_part(findings):
    document = page(findings)
    for words in (
        "Learning",
        "Rate of exact answers",
        "exact, held-out problems",
        "mean distance in nats per token",
        "<th>step 0</th><th>step 10</th>",
        "atropos chat &#39;runs/first one/model&#39;",
        "atropos env new NAME",
        "exact, training problems, step 3: 0.3",
        "Where the time went",
        "Repeat it",
        "What this shows, and what it does not",
        "It fell short",
    ):
        assert words in document
    assert document.count('<svg class="chart"') == 4
    assert document.index("Before and after") < document.index("Learning")


def test_held_out_checks_are_dots_without_a_line_between_them(findings):
    chart = page(findings).split("<svg")[1]
    assert chart.count("<polyline") == 1
    assert "exact, held-out problems, step 10: 0.9" in chart


def test_a_run_without_a_single_figure_still_has_a_page(findings):
    empty = judge(recipe_for("tiny"), [], server_version=None, seconds=1, cores=1)
    bare = Findings("t", "t", empty, [], [], [], [], {}, Path("r"), Path("none"), "again", {})
    assert "the trainer finished no step" in page(bare)


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
