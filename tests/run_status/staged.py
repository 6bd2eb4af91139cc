"""Looks at a healthy run, and evidence that differs from it in the named parts."""

from __future__ import annotations

from dataclasses import replace

from atroposlib.run_status.evidence import CounterValue, Evidence, RunSample

URL = "http://127.0.0.1:8000"
SERVER = "http://127.0.0.1:9001"
REASON = "48 of 512 sequences queued: waiting for scored groups"


def process(role, name, phase, waiting_on=None, age_s=1.0, **details):
    about = {"role": role, "name": name, "phase": phase, "waiting_on": waiting_on}
    return {**about, "age_s": age_s, "details": details}


def trainer(phase="training", **more):
    return process("trainer", "atropos-grpo m", phase, **more)


# What a trainer reports while an evaluation runs.
EVALUATION = {
    "evaluated_step": 20,
    "evaluated_version": 20,
    "evaluation_where": "dir",
    "evaluation_s": 34.0,
    "evaluation_bound_s": 600.0,
}


def env(phase="rollout", waiting_on=None, name="sums-0a1b2c", **more):
    details = {"rollouts_running": 8, "oldest_rollout_s": 3.0, **more}
    return process("env", name, phase, waiting_on, **details)


def server(name=f"{SERVER}/v1", **details):
    return process("inference", name, "serving", **{"running": 8, "waiting": 0, **details})


STATUS = {
    "state": "STARTED",
    "current_step": 4,
    "policy_version": 4,
    "queued_sequences": 48,
    "batches_acked": 3,
    "batches_open": 1,
    "open_batches": [{"no": 4, "sequences": 512, "deliveries": 1, "lease_s": 280.0}],
    "blocked_reason": REASON,
    "participants": [trainer(phase_s=1.0, phase_median_s=2.0), env(), server(version=4)],
    "ages_s": {"uptime": 500.0, "groups": 0.5, "batch": 1.0, "acked": 2.0},
    "retained_bytes": 1000,
    "max_bytes": 10**9,
}


def counted(groups=100.0, **more):
    """Counters of /metrics; a name ending in _total has no label."""
    values = {"groups_in_total": groups, "tokens_in_total": 10 * groups, **more}
    return tuple(CounterValue(name, {}, value) for name, value in values.items())


HEALTHY = Evidence(
    URL,
    RunSample(1000.0, {**STATUS, "batches_acked": 2}, counters=counted(90.0)),
    RunSample(1002.0, STATUS, counters=counted(100.0)),
)


def moving(*processes, before=None, **status):
    """The healthy run with these processes, or these values of /status, at both looks."""
    if processes:
        status["participants"] = list(processes)
    return Evidence(
        URL,
        replace(HEALTHY.before, status={**HEALTHY.before.status, **status, **(before or {})}),
        replace(HEALTHY.now, status={**STATUS, **status}),
    )


def still(*processes, ages=90.0, **status):
    """The same without any progress for ``ages`` seconds."""
    since = {kind: ages for kind in ("uptime", "groups", "batch", "acked", "policy_version")}
    found = moving(*processes, **{"ages_s": {**since, "started": 400.0}, **status})
    status = {**found.before.status, "batches_acked": found.now.status["batches_acked"]}
    return replace(found, before=replace(found.before, status=status, counters=counted(100.0)))


def with_counters(evidence, before, now):
    """Evidence with further samples of /metrics at the two looks."""
    return replace(
        evidence,
        before=replace(evidence.before, counters=(*evidence.before.counters, *before)),
        now=replace(evidence.now, counters=(*evidence.now.counters, *now)),
    )
