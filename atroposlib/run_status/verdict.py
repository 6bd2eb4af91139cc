"""Verdict on a run, which every surface shows: state, sentence, remedy, a line per process. Pure.

    stuck     a rule found a cause that does not go away by waiting
    waiting   as it should: a trainer that starts, rollouts that take long
    done      the trainer recorded the end of the run
    healthy   no cause of these three; there may be warnings

The folder of a run whose processes are gone shows done, stopped or failed (``ended``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atroposlib.run_status.diagnosis import diagnose
from atroposlib.run_status.evidence import (
    FOR_BATCH,
    OPERATOR_PHASES,
    PAUSED,
    SILENT_S,
    Evidence,
    Finding,
    Process,
    detail_of,
    evaluation_text,
    shown_name,
    silence_s,
)

State = Literal["healthy", "waiting", "stuck", "done", "stopped", "failed", "unreachable"]
ProcessState = Literal["works", "waits", "silent", "ended"]
# 0 goes on or is done, 1 waits as it should or was stopped, 2 stuck or failed, 3 not reachable.
EXIT_STATUS = {
    "healthy": 0,
    "done": 0,
    "waiting": 1,
    "stopped": 1,
    "stuck": 2,
    "failed": 2,
    "unreachable": 3,
}
SETTLE_S = 0.5  # time in which an environment notices that a batch was taken


@dataclass(frozen=True)
class ProcessLine:
    """Present activity of a process, or its silence."""

    role: str
    name: str  # the name in its heartbeats, new at each start of an environment; of an evaluation empty
    label: str  # the name that views show
    state: ProcessState
    text: str


@dataclass(frozen=True)
class StatusVerdict:
    """State of a run with its reasons; ``asdict`` makes its document in GET /status."""

    state: State
    line: str  # cause, or what goes on
    remedy: str = ""
    findings: tuple[Finding, ...] = ()
    processes: tuple[ProcessLine, ...] = ()
    groups_per_s: float = 0.0
    tokens_per_s: float = 0.0


def judge(e: Evidence) -> StatusVerdict:
    findings = diagnose(e)
    state = state_of(findings)
    cause = _cause_of(state, findings)
    return StatusVerdict(
        state=state,
        line=progress_line(e) if cause is None else cause_line(cause),
        remedy="" if cause is None else cause.remedy,
        findings=tuple(findings),
        processes=tuple(process_lines(e)),
        groups_per_s=e.grown("groups_in_total") / e.seconds,
        tokens_per_s=e.grown("tokens_in_total") / e.seconds,
    )


def state_of(findings: Sequence[Finding]) -> State:
    """The state that the findings prove, strongest first."""
    keys = {finding.key for finding in findings}
    if "api-silent" in keys:
        return "unreachable"
    if "complete" in keys:
        return "done"
    severities = {finding.severity for finding in findings}
    if "stuck" in severities:
        return "stuck"
    return "waiting" if "waiting" in severities else "healthy"


def _cause_of(state: State, findings: Sequence[Finding]) -> Finding | None:
    """The finding that the verdict names first; None for a healthy run."""
    if state == "healthy":
        return None
    if state == "done":
        return next(finding for finding in findings if finding.key == "complete")
    return findings[0]


def cause_line(finding: Finding) -> str:
    """The sentence of a verdict whose cause is this finding."""
    if finding.key == "complete":
        return finding.evidence[0]
    return f"{finding.cause}: {finding.evidence[0]}"


# --- what goes on ---------------------------------------------------------------------------


def progress_line(e: Evidence) -> str:
    """Step, usual time of a step, last batch, useful tokens, and what the trainer does now."""
    total = e.status.get("num_steps")
    parts = [f"step {e.count('current_step'):.0f}" + (f" of {total}" if total else "")]
    if e.usual_step_s:
        parts.append(f"{e.usual_step_s:.0f} s a step")
    if "acked" in (e.status.get("ages_s") or {}):
        parts.append(f"last batch trained {e.age('acked'):.0f} s ago")
    if e.tokens("trained"):
        parts.append(f"{e.tokens('useful'):.0%} of the tokens useful")
    return "; ".join(filter(None, [", ".join(parts), _activity(e)]))


def _activity(e: Evidence) -> str:
    trainer = e.trainer
    if trainer is None:
        return e.reason
    if e.phase == FOR_BATCH:
        return f"the trainer waits for a batch: {e.reason}" if e.reason else ""
    batches = e.status.get("open_batches") or ()
    doing = f"the trainer: {e.phase}"
    if e.phase == "training" and batches:
        doing = f"the trainer trains batch {batches[0]['no']}"
    if spent_s := detail_of(trainer, "phase_s"):
        usual_s = detail_of(trainer, "phase_median_s")
        doing += f" ({spent_s:.0f} s" + (f", usual {usual_s:.0f} s" if usual_s else "") + ")"
    if e.envs_all(PAUSED):
        doing += "; the environments wait for it on purpose"
    return doing


# --- processes ------------------------------------------------------------------------------


def process_lines(e: Evidence) -> Iterable[ProcessLine]:
    """A line per process, by role; of processes that a successor replaced, none.

    An evaluation that a trainer reports has a line too.
    """
    silent = {process["name"] for role in _ROLES for process in e.silent(role)}
    for process in sorted(e.processes, key=lambda process: str(process["role"])):
        ended = "ended" in process["details"]
        if ended and (process["role"] != "env" or not e.reason):
            continue  # an environment that ended may be why there is no batch
        if not ended and process["name"] not in silent and silence_s(process) > SILENT_S:
            continue  # replaced, or forgotten
        state, text = _present(process, e, ended=ended, silent=process["name"] in silent)
        yield ProcessLine(
            str(process["role"]), str(process["name"]), shown_name(process), state, text
        )
        if state in ("works", "waits") and (evaluation := evaluation_text(process)):
            yield ProcessLine("eval", "", "evaluation", "works", evaluation)


_ROLES = ("trainer", "env", "inference", "tool")


def _present(
    process: Process, e: Evidence, *, ended: bool, silent: bool
) -> tuple[ProcessState, str]:
    if ended:
        return "ended", f"has ended ({process['age_s']:.0f} s ago)"
    if silent:
        last = f"last phase {process['phase']!r}"
        return "silent", f"silent since {silence_s(process):.0f} s, {last}"
    text = str(process["phase"])
    if spent_s := detail_of(process, "phase_s"):
        text += f" {spent_s:.0f} s"
    waits = [wait for wait in waits_of(process) if not _is_over(wait, process, e)]
    if not waits:
        return ("waits" if process["phase"] in OPERATOR_PHASES else "works"), text
    causes = "; ".join(f"{wait['on']} ({wait['age_s']:.0f} s)" for wait in waits)
    return "waits", f"{text}, waits for {causes}"


def waits_of(process: Process) -> list[Mapping[str, Any]]:
    """The waits of a process, the outer cause first, with their present ages in s."""
    waits = process.get("waits") or ()
    age_s = float(process["age_s"])
    if not waits and (reason := process.get("waiting_on")):
        # A process of an older version reports a single reason.
        waits = ({"cause": "other", "on": reason, "age_s": 0.0},)
    return [{**wait, "age_s": wait["age_s"] + age_s} for wait in waits]


def _is_over(wait: Mapping[str, Any], process: Process, e: Evidence) -> bool:
    """Whether the wait ended since its report.

    A trainer repeats a reason of the API, perhaps an older reason. A wait for the trainer that was
    reported before its last batch, ack or version may be over.
    """
    if wait["cause"] == "batch" or str(wait["on"]).startswith("a batch: "):
        return True
    of_trainer = wait["cause"] == "trainer" or process["phase"] == PAUSED
    moved_s = min(map(e.age, ("batch", "acked", "policy_version")))
    return of_trainer and float(process["age_s"]) > moved_s - SETTLE_S
