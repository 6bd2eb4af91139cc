from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from atroposlib.quickstart.charts import Series, line_chart, ticks
from atroposlib.quickstart.heldout import Heldout, HeldoutSample
from atroposlib.quickstart.recipes import recipe_for
from atroposlib.quickstart.report import Findings, page, write_report
from atroposlib.quickstart.verdict import judge

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'
ROWS = [
    {
        "step": step,
        "version": step,
        "env/exact": step / 10,
        "reward_mean": step / 10,
        "logprob_mismatch_max": 1e-5,
        "staleness_mean": 0.0,
        "staleness_max": 0.0,
        "seconds_wait": 3.0,
        "seconds_train": 1.0,
    }
    for step in range(1, 11)
]


@pytest.fixture
def findings():
    sample = HeldoutSample(0, f"What is {EVIL}?", EVIL, EVIL, 0.05, False)
    return Findings(
        title=f"quickstart {EVIL}",
        task=f"sums {EVIL}",
        verdict=judge(recipe_for("smollm2", 10), ROWS, server_version=10, seconds=9, cores=2),
        rows=ROWS,
        heldout=[(0, 0.0), (10, 0.9)],
        heldout_rewards=[(0, 0.1), (10, 0.95)],
        before=[sample],
        after=[sample],
        settings={"model": EVIL},
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


def test_nothing_a_model_wrote_becomes_markup(findings):
    document = page(findings)
    tags = parsed(document)
    assert "script" not in tags.tags
    assert "img" not in tags.tags
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in document


def test_the_page_loads_nothing_and_allows_no_script(findings):
    document = page(findings)
    assert "default-src &#x27;none&#x27;" in document
    assert not any(name in ("src", "href") for name, _ in parsed(document).attributes)
    assert "url(" not in document
    assert "@import" not in document


def test_the_page_has_every_part(findings):
    document = page(findings)
    for words in (
        "Learning",
        "Rate of exact answers",
        "exact, held-out problems",
        "Largest logprob difference",
        "With the weights at the end",
        "Where the time went",
        "Settings",
        "What this shows, and what it does not",
        "It fell short",
    ):
        assert words in document
    assert document.count("<svg") == 4


def test_a_run_without_a_single_figure_still_has_a_page(findings):
    empty = judge(recipe_for("tiny"), [], server_version=None, seconds=1, cores=1)
    bare = Findings("t", "t", empty, [], [], [], [], [], {})
    assert "the trainer finished no step" in page(bare)


def test_report_and_summary_are_written_into_the_run(findings, plan):
    chosen = plan()
    chosen.options.out.mkdir()
    report = write_report(findings, chosen)
    summary = json.loads((chosen.options.out / "summary.json").read_text())
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert summary["exact_last"] == pytest.approx(0.8)
    assert summary["line"].startswith("quickstart: exact 0.10 -> 0.80")


def test_a_chart_puts_the_highest_value_at_the_top():
    svg = line_chart([Series("x", ((1, 0.0), (2, 1.0)))], title="t", y_range=(0.0, 1.0))
    points = re.search(r'points="([^"]+)"', svg)
    assert points is not None
    (_, low), (_, high) = (map(float, point.split(",")) for point in points[1].split())
    assert low > high


def test_a_logarithmic_chart_leaves_out_zero_and_draws_powers_of_ten():
    svg = line_chart([Series("x", ((1, 0.0), (2, 1e-6), (3, 1e-3)))], title="t", log=True)
    assert ">1e-6<" in svg
    assert ">1e-3<" in svg
    assert line_chart([Series("x", ((1, 0.0),))], title="t", log=True) == ""


def test_a_single_point_and_a_flat_curve_can_be_drawn():
    assert "circle" in line_chart([Series("x", ((1, 0.5),))], title="t")
    assert "polyline" in line_chart([Series("x", ((1, 0.0), (2, 0.0)))], title="t")


@pytest.mark.parametrize(
    ("axis", "expected"),
    [((0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), ((1.0, 40.0), [10, 20, 30, 40])],
)
def test_ticks_are_round_numbers(axis, expected):
    assert ticks(axis) == pytest.approx(expected)


def write_check(directory, step, exact, samples):
    at = directory / f"step-{step}"
    at.mkdir(parents=True)
    document = {
        "config_general": {"eval_step": step, "eval_policy_version": step},
        "results": {"all": {"exact": exact, "reward": exact}},
    }
    (at / "metrics.json").write_text(json.dumps(document))
    (at / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))


def test_held_out_checks_are_read_in_order_of_their_steps(tmp_path):
    line = {"prompt": "1 + 1?", "completion": "2", "expected": "2", "reward": 1, "exact": True}
    for step, exact in ((10, 0.5), (0, 0.1), (20, 0.9)):
        write_check(tmp_path / "heldout", step, exact, [line])
    heldout = Heldout(tmp_path / "heldout")
    assert [(check.step, check.exact) for check in heldout.read()] == [
        (0, 0.1),
        (10, 0.5),
        (20, 0.9),
    ]
    assert heldout.samples(first=False) == [HeldoutSample(20, "1 + 1?", "2", "2", 1.0, True)]
    heldout.copy_samples(tmp_path / "samples.jsonl")
    text = (tmp_path / "samples.jsonl").read_text()
    copied = [json.loads(line) for line in text.splitlines()]
    assert [sample["step"] for sample in copied] == [0, 10, 20]


def test_a_check_that_is_being_written_is_not_read_yet(tmp_path):
    (tmp_path / "heldout" / "step-0").mkdir(parents=True)
    assert Heldout(tmp_path / "heldout").read() == []
    assert Heldout(tmp_path / "absent").read() == []
