"""Participants from heartbeats: inference servers, and stalled processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from atroposlib.errors import ConfigError
from atroposlib.run_status.evidence import (
    SILENT_S,
    Process,
    shown_name,
    silence_s,
    silent_ones,
)
from atroposlib.wire.directory import ServerDirectory, ServerEntry
from atroposlib.wire.status import Heartbeat, Participant, ServerState

# Keys: URL, then role and name of the caller; with the time of its report.
Reports = Mapping[str, Mapping[tuple[str, str], tuple[ServerState, float]]]
Beats = Iterable[tuple[Heartbeat, float]]  # heartbeats with their times

REPORT_S = 60.0  # age at which a report about a server no longer counts
MAX_IN_REASON = 3  # stalled processes; /status lists all

MAX_DETAILS = 64
MAX_DETAIL_CHARACTERS = 200


def require_short(details: Mapping[str, float | int | str]) -> None:
    """Refuse details of a heartbeat beyond their bounds."""
    longest = max((len(str(part)) for item in details.items() for part in item), default=0)
    if len(details) > MAX_DETAILS or longest > MAX_DETAIL_CHARACTERS:
        raise ConfigError(
            f"details: at most {MAX_DETAILS}, of {MAX_DETAIL_CHARACTERS} characters each"
        )


def inference_server(
    url: str,
    reports: Sequence[tuple[ServerState, float]],
    announced: tuple[Heartbeat, float] | None = None,
) -> Participant:
    """State of a server, from the reports of its callers and its own heartbeat (ages in s).

    It counts as silent if no caller with running requests gets an answer; ``silent_s`` is
    then the shortest silence. A server without callers is silent once its heartbeats ended.
    Requests are summed.
    """
    busy = [state for state, _ in reports if state.running or state.silent_s is not None]
    silences = [state.silent_s for state in busy if state.silent_s is not None]
    versions = [state.version for state, _ in reports if state.version is not None]
    rates = [state.tokens_per_s for state, _ in reports if state.tokens_per_s is not None]
    details: dict[str, float | int | str] = {
        "running": sum(state.running for state, _ in reports),
        "waiting": sum(state.waiting for state, _ in reports),
        "callers": len(reports),
    }
    if busy and all(state.paused for state in busy):
        details["paused"] = 1
    if versions:
        details["version"] = max(versions)
    if any(state.held for state, _ in reports):
        details["held"] = 1
    if rates:
        details["tokens_per_s"] = round(sum(rates), 1)
    if announced is not None:
        beat, since_s = announced
        details |= {"name": beat.name, **beat.details}
        if beat.announces is not None and beat.announces.version is not None:
            details.setdefault("version", beat.announces.version)
        if since_s > SILENT_S and not busy and "ended" not in beat.details:
            silences, busy = [since_s], [ServerState(url=url)]
    silent = bool(silences) and len(silences) == len(busy)
    if silent:
        details["silent_s"] = min(silences)
    ages = [age for _, age in reports] + ([announced[1]] if announced else [])
    return Participant(
        role="inference",
        name=url,
        phase="no answer" if silent else "serving",
        waiting_on=None,
        details=details,
        age_s=min(ages),
    )


def participants(beats: Beats, reports: Reports, now: float) -> list[Participant]:
    """All processes, and an entry for each inference server."""
    announced: dict[str, tuple[Heartbeat, float]] = {}
    processes = []
    for beat, seen in beats:
        age_s = max(0.0, now - seen)
        if beat.announces is not None:
            announced[beat.announces.url] = beat, age_s
        else:
            own = beat.model_dump(exclude={"servers", "announces"})
            processes.append(Participant(**own, age_s=age_s))
    servers = [
        inference_server(
            url,
            [(state, now - at) for state, at in reports.get(url, {}).values()],
            announced.get(url),
        )
        for url in dict.fromkeys([*reports, *announced])
    ]
    return processes + servers


def directory(
    beats: Collection[tuple[Heartbeat, float]],
    reports: Reports,
    now: float,
    instance: str,
    began: float,
) -> ServerDirectory:
    """Inference servers whose own heartbeats are fresh; the API ``began`` as ``instance``.

    A server takes part if a trainer reports that it answers: it then holds the current weights.
    Without a trainer that reports, all servers take part, once the list is complete. A server
    that an evaluation holds takes no part.
    """
    complete = now - began > SILENT_S
    reporting = any(beat.role == "trainer" and now - seen <= REPORT_S for beat, seen in beats)
    listed = ServerDirectory(instance=instance, complete=complete, servers=[])
    for beat, seen in beats:
        if beat.announces is None or "ended" in beat.details or now - seen > SILENT_S:
            continue
        seen_by_trainers = [
            state
            for (role, _), (state, _) in reports.get(beat.announces.url, {}).items()
            if role == "trainer"
        ]
        taken = any(state.silent_s is None for state in seen_by_trainers)
        held = any(state.held for state in seen_by_trainers)
        listed.servers.append(
            ServerEntry(
                **beat.announces.model_dump(),
                name=beat.name,
                age_s=max(0.0, now - seen),
                takes_part=not held and (taken or complete and not reporting),
                held=held,
            )
        )
    return listed


def stalled(participants: Iterable[Participant]) -> list[str]:
    """Lines for processes without a sign of life, the longest silence first.

    A process that waits still sends heartbeats, so it is not listed.
    """
    return [_line(process) for process in silent_ones(map(dict, participants))]


def with_stalled(reason: str, participants: Iterable[Participant]) -> str:
    """``reason``, and the stalled processes that cause it."""
    return "; ".join([reason, *stalled(participants)[:MAX_IN_REASON]])


def _line(one: Process) -> str:
    if one["role"] == "inference":
        return (
            f"inference server {one['name']} has answered nothing for {silence_s(one):.0f} s"
        )
    role = {"env": "environment"}.get(one["role"], one["role"])
    return f"{role} {shown_name(one)} has sent no heartbeat for {silence_s(one):.0f} s"
