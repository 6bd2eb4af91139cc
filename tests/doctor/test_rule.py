"""A rule fills what its function leaves open from its own words."""

from __future__ import annotations

from atroposlib.doctor.rule import Found, rule
from tests.doctor.staged import HEALTHY


@rule(99, "example", "waiting", "the cause", "the remedy")
def example(evidence):
    return Found(["one"], severity="warning") if evidence.started else None


def test_a_finding_has_the_words_of_its_rule_and_the_time_of_the_look():
    found = example(HEALTHY)
    assert (found.rule, found.key, found.severity) == (99, "example", "warning")
    assert (found.cause, found.remedy, found.evidence) == ("the cause", "the remedy", ("one",))
    assert found.at == HEALTHY.now.at


def test_without_evidence_there_is_no_finding():
    assert (
        example(HEALTHY.__class__(HEALTHY.url, HEALTHY.now, HEALTHY.before.__class__(1.0)))
        is None
    )
