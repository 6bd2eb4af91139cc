"""Diagnosis: all rules in order of strength, and what moves where none fires. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from atroposlib.doctor import processes as p
from atroposlib.doctor import queue as q
from atroposlib.doctor.evidence import Evidence, Finding, Rule

MOST = 5  # findings shown at once
# Strongest first: an absent API, silence of a process, what stops every batch, what slows it.
RULES: tuple[Rule, ...] = (
    p.api_silent,
    p.trainer_silent_in_step,
    p.trainer_silent,
    p.inference_silent,
    q.never_committed,
    q.store_full,
    q.minima_impossible,
    q.sizes_do_not_divide,
    q.group_too_large,
    q.minimum_unmet,
    p.environment_silent,
    p.rollouts_fail,
    p.same_scores,
    p.groups_dropped,
    p.servers_paused,
    q.redelivered,
    p.slow_step,
    q.partial_groups,
    p.not_admitted,
    p.full_without_batch,
    p.two_apis,
    q.versions_differ,
    p.complete,
    p.no_trainer,
    p.trainer_starting,
    p.long_generations,
    p.trainer_bound,
    q.stale_drops,
    q.dead_batches,
    q.mismatch,
    q.foreign_posts,
    q.repeated_posts,
    q.slow_store,
    q.index_behind,
    q.index_unfit,
    q.thread_failed,
    p.clocks_differ,
    p.context_full,
)
# Cause -> findings that follow from it and are not shown with it.
_IMPLIED = {
    "full-without-batch": (
        "sizes-do-not-divide",
        "group-too-large",
        "minima-impossible",
        "minimum-unmet",
        "partial-groups",
        "not-admitted",
    ),
    "foreign-posts": ("two-apis",),
    "no-trainer": ("two-apis",),
    "trainer-silent": ("complete",),
    "environment-silent": ("complete",),
    "servers-paused": ("inference-silent",),
    "trainer-bound": ("inference-silent", "slow-step", "servers-paused"),
}
_RANK = {"stuck": 0, "waiting": 1, "warning": 2}


def diagnose(evidence: Evidence) -> list[Finding]:
    """The findings of all rules, strongest first: stuck, then waiting, then warnings."""
    findings = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    keys = {finding.key for finding in findings}
    if "api-silent" in keys:
        return findings[:1]
    kept = [finding for finding in findings if not keys & {*_IMPLIED.get(finding.key, ())}]
    return sorted(kept, key=lambda finding: _RANK[finding.severity])[:MOST]


def moving(e: Evidence) -> str | None:
    """Progress between the looks, with rates; None without an answer of the API."""
    if e.now.status is None:
        return None
    groups, tokens = (e.grown(f"{name}_in_total") / e.seconds for name in ("groups", "tokens"))
    parts = [
        f"{groups:.1f} groups/s and {tokens:.0f} tokens/s arrive",
        f"step {e.count('current_step'):.0f}, "
        f"{e.change('batches_acked'):.0f} batches trained in {e.seconds:.0f} s",
        f"policy version {e.count('policy_version'):.0f}",
    ]
    for kind, noun in (("groups", "group"), ("acked", "ack")):
        if kind in (e.status.get("ages_s") or {}):
            parts.append(f"last {noun} {e.age(kind):.0f} s ago")
    return ", ".join(parts)


def answer(findings: Iterable[Finding], going: str | None) -> dict[str, Any]:
    """The body of GET /explore/why; ``going`` is what moves, for a run without findings."""
    listed = [asdict(finding) for finding in findings]
    return {"findings": listed, "moving": None if listed else going}


def exit_status(findings: Sequence[Finding]) -> int:
    """0 moving, 1 waiting as it should, 2 stuck, 3 not reachable."""
    if any(finding.key == "api-silent" for finding in findings):
        return 3
    severities = {finding.severity for finding in findings}
    return 2 if "stuck" in severities else int("waiting" in severities)
