"""The registry: numbers, order of the findings, and the table of the guide."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from atroposlib.run_status import rules_processes
from atroposlib.run_status.diagnosis import MAX_FINDINGS, RULES, diagnose
from atroposlib.run_status.evidence import RunSample
from tests.api.run.test_judge import STALLS as STALLS_OF_THE_APP
from tests.run_status.staged import HEALTHY, env, server, still, trainer
from tests.run_status.test_why import STAGED as STAGED_OVER_HTTP

LISTED = (*RULES, rules_processes.two_apis)  # the last is found by a caller of the API


def test_every_number_of_the_table_has_one_rule():
    assert sorted(rule.number for rule in LISTED) == [*range(1, 45)]
    assert len({rule.key for rule in LISTED}) == len(LISTED)


def test_a_healthy_run_has_no_finding():
    assert diagnose(HEALTHY) == []


def test_an_absent_api_is_the_only_finding():
    gone = replace(HEALTHY, now=RunSample(1002.0, problem="refused"))
    assert [one.key for one in diagnose(gone)] == ["api-silent"]


def test_silence_of_a_process_comes_before_what_it_causes():
    gone = env("paused: queue full") | {"age_s": 26.0}
    found = diagnose(
        still(trainer("waiting for batch", clock=1.0), gone, server(silent_s=20.0))
    )
    assert [one.key for one in found] == [
        "inference-silent",
        "environment-silent",
        "clocks-differ",
    ]


def test_at_most_five_findings_are_shown():
    many = still(
        trainer(age_s=26.0),
        server(silent_s=20.0),
        env(failed_in_a_row=9, clock=1.0),
        batches_dead=1,
        dead_groups=2,
        buffered_sequences=3,
        blocked_reason="every queued group is larger than a batch of 8 sequences (x 16)",
        open_batches=[{"no": 4, "sequences": 8, "deliveries": 5, "lease_s": 1.0}],
    )
    found = diagnose(many)
    assert len(found) == MAX_FINDINGS and found[0].key == "trainer-silent-in-step"


def staged_by(key):
    """How the tests stage the stall of a rule; the guide has it in its table."""
    frozen = ("inference-silent", "environment-silent", "trainer-silent")  # test_whole_run.py
    frozen += ("teacher-silent",)  # test_teacher_kills.py
    places = {"app": STALLS_OF_THE_APP, "HTTP": STAGED_OVER_HTTP, "processes": frozen}
    return ", ".join(place for place, keys in places.items() if key in keys)


def test_the_guide_has_a_line_for_each_rule_and_how_it_is_staged():
    page = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text(encoding="utf-8")
    for one in LISTED:
        remedy = one.remedy
        if one.key == "groups-dropped":  # too long for a cell of a table
            listed = re.search(r"^\* too_long: .*\n(?:\* .*\n)+", page, re.MULTILINE)
            assert listed and listed[0].strip("* \n").replace("\n* ", "; ") == remedy
            remedy = "by the reason: see below"
        words = (f"`{one.key}`", one.cause, remedy, staged_by(one.key))
        assert " | ".join((f"| {one.number}", *words)) + " |" in page


def test_every_rule_has_a_stall_of_a_real_api():
    assert [one.key for one in LISTED if not staged_by(one.key)] == []


def test_a_consequence_is_not_shown_beside_its_cause():
    publishing = trainer("publishing weights", phase_s=200.0, phase_median_s=1.0)
    found = diagnose(still(publishing, env("paused: queue full"), server(silent_s=90.0)))
    assert [one.key for one in found] == ["inference-silent"]
