"""A rule fills what its function leaves open from its own words."""

from __future__ import annotations

from dataclasses import replace

from atroposlib.doctor.evidence import Look
from atroposlib.doctor.rule import MOST_LINES, Found, fix, rule
from tests.doctor.staged import HEALTHY


@rule(99, "waiting", "the cause")
@fix("the remedy")
def an_example(evidence):
    return Found(["one"] if evidence.started else [], severity="warning")


@rule(98, "stuck", "the cause")
@fix("the remedy")
def a_long_list(evidence):
    return [f"line {n}" for n in range(9)]


def test_a_finding_has_the_words_of_its_rule_and_the_time_of_the_look():
    found = an_example(HEALTHY)
    assert (found.rule, found.key, found.severity) == (99, "an-example", "warning")
    assert (found.cause, found.remedy, found.evidence) == ("the cause", "the remedy", ("one",))
    assert found.at == HEALTHY.now.at


def test_without_evidence_there_is_no_finding():
    assert an_example(replace(HEALTHY, now=Look(1.0))) is None


def test_a_long_list_of_evidence_ends_with_the_number_of_the_others():
    shown = a_long_list(HEALTHY).evidence
    assert shown == (*(f"line {n}" for n in range(MOST_LINES)), "and 4 more")
