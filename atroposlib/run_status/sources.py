"""Status of a running run, read from its files and its HTTP routes.

metrics.jsonl (trainer) --.
heldout/ (environment) ---+--> RunSnapshot --> view
API /status, server ------'
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atroposlib.run_status.evidence import SILENT_S
from atroposlib.run_status.heldout import Heldout, HeldoutSample
from atroposlib.run_status.server_tokens import LOCAL_COUNTER, metric_of_engine
from atroposlib.text.lines import json_lines
from atroposlib.trackers import finite_number
from atroposlib.trackers.jsonl import last_run
from atroposlib.wire.numbers import natural_of

REQUEST_TIMEOUT_S = 1.0  # a busy server may miss a poll; the next is half a second later
RATE_WINDOW_S = 0.5
ABSENT: Mapping[str, Any] = {
    "state": "unreachable",
    "line": "the rollout API does not answer",
    "findings": (),
    "processes": (),
}
NEWEST_SHOWN = 4  # answers of rollouts
ANSWER_CHARS = 160
RECENT_STEPS = 8  # window of steps whose mean duration predicts the rest


@dataclass(frozen=True)
class RunSnapshot:
    """Status of a run at a moment. None: not known (yet)."""

    name: str = ""  # the command
    title: str = ""
    task: str = ""
    reward_words: str = ""  # what the reward is
    elapsed_s: float = 0.0
    left_s: float | None = None  # estimate, of the training
    state: str = "waiting"  # the state of the verdict
    line: str = "the processes start"  # the line of the verdict
    step: int = 0
    steps: int = 0
    rewards: tuple[float, ...] = ()  # a value per step
    exacts: tuple[float, ...] = ()
    # measures of the environment and the policy's entropy, of the last step
    measures: str = ""
    heldout: tuple[tuple[int, float], ...] = ()  # (step, exact rate)
    answers: tuple[tuple[HeldoutSample, ...], ...] = ()  # per held-out problem, by step
    newest: tuple[
        tuple[float | None, str], ...
    ] = ()  # reward and answer of the newest rollouts
    generate_tokens_per_s: float | None = None
    train_tokens_per_s: float | None = None
    staleness_mean: float | None = None  # versions behind the trainer
    staleness_max: float | None = None
    mismatch: float | None = None  # nats per token, on average of the last step
    server_version: int | None = None
    trainer_version: int | None = None
    dropped: str = ""  # groups that environments did not send, with the reasons
    warnings: tuple[str, ...] = ()  # findings that the line leaves out
    processes: tuple[str, ...] = ()  # a line each


@dataclass
class JsonLines:
    """Incremental reader of a growing JSONL file, which a restarted trainer may replace."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0
    _inode: int = 0

    def read(self) -> list[dict[str, Any]]:
        """All rows so far. A last line without its end is left for the next read."""
        try:
            with self.path.open("rb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset, self.rows = inode, 0, []
                stream.seek(self._offset)
                new = stream.read()
        except FileNotFoundError:
            return self.rows
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.rows += json_lines(whole.decode())
        return self.rows


class Probe:
    """Bounded GETs of small documents on the loopback interface; None if a server is absent."""

    def __init__(self) -> None:
        # trust_env off: a proxy must not receive requests to loopback addresses.
        self._client = httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False)

    def get(self, url: str) -> dict[str, Any] | None:
        try:
            answer = json.loads(self.text(url) or "null")
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None

    def text(self, url: str, method: str = "GET", **options: Any) -> str | None:
        try:
            reply = self._client.request(method, url, **options)
        except httpx.TransportError:
            return None
        return reply.text if reply.is_success else None

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True)
class WatchedRun:
    """Identity of the sources of a run, and its words in the view."""

    name: str  # the command
    title: str
    steps: int
    api_url: str
    server_url: str
    local_server: bool  # atroposlib.inference, else vLLM or SGLang
    metrics_path: Path
    heldout_dir: Path
    task: str = ""
    reward_words: str = ""


class Sources:
    """All sources of a snapshot, for a run."""

    def __init__(self, run: WatchedRun, started: float) -> None:
        self.run = run
        self.started = started  # time.monotonic() of the first process
        self.metrics = JsonLines(run.metrics_path)
        self.heldout = Heldout(run.heldout_dir)
        self.probe = Probe()
        self.delivered = 0  # batches, by the last answer
        self._rate = TokenRate()
        self._newest: tuple[int, tuple[tuple[float | None, str], ...]] = (
            -1,
            (),
        )  # answers of a step

    def read(self) -> RunSnapshot:
        """Read every source once; takes at most a few REQUEST_TIMEOUT_S."""
        rows = self.rows()
        status = self.probe.get(f"{self.run.api_url}/status")
        if (delivered := number(status, "current_step")) is not None:
            self.delivered = int(delivered)
        info = self.server_info()
        now = time.monotonic()
        if (total := self._generated_tokens(info)) is not None:
            self._rate.note(now, total)
        latest: Mapping[str, Any] = rows[-1] if rows else {}
        run, verdict = self.run, verdict_of(status)
        return RunSnapshot(
            name=run.name,
            title=run.title,
            task=run.task,
            reward_words=run.reward_words,
            elapsed_s=now - self.started,
            left_s=seconds_left(rows, run.steps),
            state=verdict["state"],
            line=verdict["line"],
            step=len(rows),
            steps=run.steps,
            rewards=tuple(column(rows, "reward_mean")),
            exacts=tuple(column(rows, "env/exact")),
            measures=measures_of(latest),
            heldout=tuple((check.step, check.rate) for check in self.heldout.read()),
            answers=tuple(self.heldout.answers()),
            newest=self.newest_answers(len(rows)),
            generate_tokens_per_s=self._rate.per_s,
            train_tokens_per_s=number(latest, "tokens_per_s"),
            staleness_mean=number(latest, "staleness_mean"),
            staleness_max=number(latest, "staleness_max"),
            mismatch=largest(latest, "logprob_mismatch_mean", "publish_mismatch_mean"),
            server_version=version_of(info),
            trainer_version=version_of({"weight_version": latest.get("version", 0)}),
            dropped=dropped_groups(status),
            warnings=warnings_of(verdict),
            processes=tuple(
                f"{process['label']}: {process['text']}" for process in verdict["processes"]
            ),
        )

    def newest_answers(self, step: int) -> tuple[tuple[float | None, str], ...]:
        """Rewards and beginnings of the newest answers, read once for each step."""
        if self._newest[0] < step:
            query = f"limit={NEWEST_SHOWN}&sort=-arrived&answer={ANSWER_CHARS}"
            page = self.probe.get(f"{self.run.api_url}/explore/rollouts?{query}")
            if page is not None:
                self._newest = step, newest_answers(page)
        return self._newest[1]

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics of each step; steps that a restarted trainer repeats count once."""
        return last_run(self.metrics.read())

    def server_info(self) -> dict[str, Any] | None:
        route = "server_info" if self.run.local_server else "weight_info"
        return self.probe.get(f"{self.run.server_url}/{route}")

    def _generated_tokens(self, info: Mapping[str, Any] | None) -> float | None:
        """Return the number of tokens the server has generated since its start."""
        if self.run.local_server:
            return number(info, LOCAL_COUNTER)
        text = self.probe.text(f"{self.run.server_url}/metrics")
        return None if text is None else metric_of_engine(text)

    def env_beat_after(self, moment: float) -> bool:
        """Whether an environment called the API after ``moment`` (monotonic seconds)."""
        status = self.probe.get(f"{self.run.api_url}/status")
        # The API may count a beat sent just before the death just after it.
        return any(time.monotonic() - age > moment + 0.5 for age in env_ages_s(status))

    def has_no_environment(self) -> bool:
        """Whether the API answers, and no environment lives by its heartbeats or requests.

        Environments of the original send no heartbeats.
        """
        status = self.probe.get(f"{self.run.api_url}/status")
        return status is not None and not has_environment(status)


@dataclass
class TokenRate:
    """Tokens per second, without idle time."""

    per_s: float | None = None
    _at: float | None = None
    _total: float = 0.0

    def note(self, now: float, total: float) -> None:
        if self._at is None or total < self._total:  # first look, or a restarted server
            self._at, self._total = now, total
            return
        passed, grown = now - self._at, total - self._total
        if passed < RATE_WINDOW_S:
            return
        if grown > 0:
            latest = grown / passed
            self.per_s = latest if self.per_s is None else 0.7 * self.per_s + 0.3 * latest
        self._at, self._total = now, total


def seconds_left(rows: Sequence[Mapping[str, Any]], steps: int) -> float | None:
    """Return the seconds of the steps still to do, at the pace of the last steps."""
    recent = rows[-RECENT_STEPS:]
    spent = sum(sum(column([row], n)) for row in recent for n in row if n[:8] == "seconds_")
    return spent / len(recent) * max(0, steps - len(rows)) if spent > 0 else None


def column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the finite numbers of a column, in row order."""
    values = (finite_number(row.get(name)) for row in rows)
    return [value for value in values if value is not None]


def measures_of(row: Mapping[str, Any]) -> str:
    """Format the environment's measures, without the reward, and the entropy of the policy."""
    named = [name for name in row if name.startswith("env/") and name != "env/reward"]
    shown = ((n.removeprefix("env/"), number(row, n)) for n in (*named[:5], "entropy"))
    return "  ".join(f"{name} {value:.3g}" for name, value in shown if value is not None)


def number(row: Mapping[str, Any] | None, name: str) -> float | None:
    values = column([row], name) if row else []
    return values[0] if values else None


def largest(row: Mapping[str, Any], *names: str) -> float | None:
    return max((value for name in names for value in column([row], name)), default=None)


def version_of(info: Mapping[str, Any] | None) -> int | None:
    """Return the weight version in a server's response; vLLM names the initial version default."""
    label = str((info or {}).get("weight_version"))
    return 0 if label == "default" else natural_of(label)


def participants(status: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [] if status is None else [dict(p) for p in status.get("participants", [])]


def newest_answers(page: Mapping[str, Any]) -> tuple[tuple[float | None, str], ...]:
    """(reward, answer) of the rows of a reply to /explore/rollouts whose text was read."""
    rows = page.get("rows") or []
    return tuple((number(row, "reward"), row["answer"]) for row in rows if row.get("answer"))


def dropped_groups(status: Mapping[str, Any] | None) -> str:
    """Return how many groups environments dropped and why, or nothing if none."""
    counts: Counter[str] = Counter()
    for details in (p.get("details", {}) for p in participants(status)):
        counts.update(
            {k: int(v) for k, v in details.items() if k.startswith(("groups_", "dropped"))}
        )
    sent, lost = counts.pop("groups_sent", 0), counts.pop("groups_dropped", 0)
    reasons = ", ".join(name.removeprefix("dropped_") for name, _ in counts.most_common())
    return f"dropped {lost} of {lost + sent} groups ({reasons})" if lost else ""


def verdict_of(status: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The verdict of the API; that it does not answer, without a status."""
    if status is None or not status.get("verdict"):
        return ABSENT
    verdict: Mapping[str, Any] = status["verdict"]
    return verdict


def warnings_of(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    """A line for each finding of the verdict that its own line leaves out."""
    findings = verdict["findings"]
    named = 0 if verdict["state"] in ("healthy", "done") else 1
    return tuple(
        f"{finding['cause']}: {finding['evidence'][0]}"
        for finding in findings[named:]
        if finding["key"] != "complete"
    )


def has_environment(status: Mapping[str, Any]) -> bool:
    """Whether an environment of ``GET /status`` lives, by its heartbeats or its share."""
    named = (share for share in status.get("shares", ()) if share.get("env_id") is not None)
    return any(share["asked"] for share in named) or any(
        age <= SILENT_S for age in env_ages_s(status)
    )


def env_ages_s(status: Mapping[str, Any] | None) -> list[float]:
    """Return the seconds since the last heartbeat of each environment that did not end."""
    return [
        float(process.get("age_s", 0.0))
        for process in participants(status)
        if process.get("role") == "env" and "ended" not in process.get("details", {})
    ]
