"""Which process of a run does not go on, from heartbeats: not the ones that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atroposlib.doctor.evidence import Process, silence_s, silent_ones
from atroposlib.wire.status import Participant, ServerState

MAX_IN_REASON = 3  # of them; /status lists all


def inference_server(url: str, reports: Sequence[tuple[ServerState, float]]) -> Participant:
    """One server out of the reports of its callers, each with its age (s).

    It counts as silent if no caller with running requests gets an answer; ``silent_s`` is
    then the shortest silence. Requests are summed.
    """
    busy = [one for one, _ in reports if one.running or one.silent_s is not None]
    silences = [one.silent_s for one in busy if one.silent_s is not None]
    versions = [one.version for one, _ in reports if one.version is not None]
    rates = [one.tokens_per_s for one, _ in reports if one.tokens_per_s is not None]
    details: dict[str, float | int | str] = {
        "running": sum(one.running for one, _ in reports),
        "waiting": sum(one.waiting for one, _ in reports),
        "callers": len(reports),
    }
    if versions:
        details["version"] = max(versions)
    if rates:
        details["tokens_per_s"] = round(sum(rates), 1)
    silent = bool(silences) and len(silences) == len(busy)
    if silent:
        details["silent_s"] = min(silences)
    return Participant(
        role="inference",
        name=url,
        phase="no answer" if silent else "serving",
        waiting_on=None,
        details=details,
        age_s=min(age for _, age in reports),
    )


def stalled(participants: Iterable[Participant]) -> list[str]:
    """One line per process that gives no sign of life, the longest silence first.

    A process that waits still sends heartbeats, so it is not listed.
    """
    return [_line(one) for one in silent_ones(map(dict, participants))]


def with_stalled(reason: str, participants: Iterable[Participant]) -> str:
    """``reason``, and the processes that cause it because they do not go on."""
    return "; ".join([reason, *stalled(participants)[:MAX_IN_REASON]])


def _line(one: Process) -> str:
    if one["role"] == "inference":
        return (
            f"inference server {one['name']} has answered nothing for {silence_s(one):.0f} s"
        )
    role = {"env": "environment"}.get(one["role"], one["role"])
    return f"{role} {one['name']} has sent no heartbeat for {silence_s(one):.0f} s"
