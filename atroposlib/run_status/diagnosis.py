"""Diagnosis: all rules in order of strength. Pure."""

from __future__ import annotations

from atroposlib.run_status import rules_processes as p, rules_queue as q
from atroposlib.run_status.evidence import Evidence, Finding, Rule

MAX_FINDINGS = 5  # findings shown at once
# Strongest first: an absent API, silence of a process, what stops every batch, what slows it.
RULES: tuple[Rule, ...] = (
    p.api_silent,
    p.trainer_silent_in_step,
    p.trainer_silent,
    p.inference_silent,
    p.teacher_silent,
    q.never_committed,
    q.store_full,
    q.paused_by_operator,
    q.minima_impossible,
    q.sizes_do_not_divide,
    q.group_too_large,
    q.minimum_unmet,
    p.environment_silent,
    p.rollouts_fail,
    p.same_scores,
    p.groups_dropped,
    p.mostly_dropped,
    p.servers_paused,
    q.redelivered,
    p.slow_step,
    q.partial_groups,
    p.not_admitted,
    p.full_without_batch,
    q.versions_differ,
    p.complete,
    p.no_trainer,
    p.trainer_starting,
    p.trainer_evaluates,
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
    q.tokens_unknown,
    q.useful_share_halved,
    p.clocks_differ,
    p.context_full,
)
# Finding -> its causes: a finding is left out where a cause is shown.
_IMPLIED = {
    "full-without-batch": (
        "sizes-do-not-divide",
        "group-too-large",
        "minima-impossible",
        "minimum-unmet",
        "partial-groups",
        "not-admitted",
        "paused-by-operator",
    ),
    "not-admitted": ("paused-by-operator",),
    "mostly-dropped": ("same-scores", "groups-dropped", "store-full"),
    "tokens-unknown": ("index-behind", "index-unfit", "thread-failed"),
    "useful-share-halved": (
        "complete",
        "same-scores",
        "groups-dropped",
        "mostly-dropped",
        "stale-drops",
        "dead-batches",
        "rollouts-fail",
    ),
    "trainer-silent": ("complete",),
    "long-generations": ("teacher-silent",),
    "environment-silent": ("complete",),
    "servers-paused": ("inference-silent",),
    "trainer-bound": (
        "inference-silent",
        "slow-step",
        "servers-paused",
        "trainer-evaluates",
    ),
}
_RANK = {"stuck": 0, "waiting": 1, "warning": 2}


def diagnose(evidence: Evidence) -> list[Finding]:
    """The findings of all rules, strongest first: stuck, then waiting, then warnings."""
    findings = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    keys = {finding.key for finding in findings}
    if "api-silent" in keys:
        return findings[:1]
    kept = [finding for finding in findings if not keys & {*_IMPLIED.get(finding.key, ())}]
    return sorted(kept, key=lambda finding: _RANK[finding.severity])[:MAX_FINDINGS]
