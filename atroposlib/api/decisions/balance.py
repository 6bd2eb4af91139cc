"""Balance of the tokens of a run: what servers returned, and the end state of each token. Pure.

    reports of processes (run document) --.
                                          +--> run_account: generated + supplied = sum of the states
    rows of the archive ------------------'

A report of a process has the posted tokens; the rows have their end state.
Rows that no report has counted yet, because the process died before its next report, or is about
to send it, count as returned: they are taken out of the tokens in flight first. What is left in
flight of a process that died is ``discarded/lost_with_its_process``. Replies that arrived
after its last report are known to the servers alone: :func:`with_server_count`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from atroposlib.api.common.run_record import ProcessAccount, RunRecord
from atroposlib.wire.explore import AccountLine, RunAccount
from atroposlib.wire.status import (
    IN_FLIGHT,
    JOURNALLED,
    LEASED,
    LOST,
    NO_GRADIENT,
    POSTED,
    QUEUED,
    RECOVERED,
    SUPPLIED,
    TRAINED,
    AccountReport,
    StateCount,
    drop_state,
)

SILENT_AFTER_S = 60.0  # six reports
MAX_PROCESSES = 256  # accounts of ended processes beyond are added up
MOVING = (IN_FLIGHT, QUEUED, LEASED, JOURNALLED)
ZERO_ADVANTAGE = "zero_advantage"  # reason in the notes of the trainer
_STATE_OF = {
    "buffered": QUEUED,
    "pending": QUEUED,
    "leased": LEASED,
    "acked": TRAINED,
    "committed": TRAINED,
    "dead": drop_state("dead_batch"),
}


class RowTotal(NamedTuple):
    """Trained tokens and rows of the archive that share the rest."""

    env: str | None
    version: int | None
    step: int | None
    state: str | None  # state in the index
    why: str | None
    tokens: int
    samples: int


class Line(NamedTuple):
    """Key of a line of the balance."""

    env: str | None
    version: int | None
    step: int | None
    state: str


# --- reports --------------------------------------------------------------------------


def with_report(run: RunRecord, report: AccountReport, env: str, now: float) -> RunRecord:
    """The run with the counters of ``report``, unless a newer report of its process is known."""
    known = run.accounts.get(report.instance)
    if known is not None and known.sequence >= report.sequence:
        return run
    counts = tuple((c.version, c.state, c.tokens, c.samples) for c in report.counts)
    account = ProcessAccount(
        env=env, sequence=report.sequence, at=now, ended=report.ended, counts=counts
    )
    accounts = {**run.accounts, report.instance: account}
    return msgspec.structs.replace(run, accounts=merge_accounts(accounts, now))


def merge_accounts(
    accounts: Mapping[str, ProcessAccount], now: float
) -> Mapping[str, ProcessAccount]:
    """``accounts`` within the bound: the oldest of over processes are added up by environment."""
    surplus = len(accounts) - MAX_PROCESSES
    over = [name for name, account in accounts.items() if is_over(account, now)]
    oldest = sorted(over, key=lambda name: accounts[name].at)[: 2 * max(0, surplus)]
    if surplus <= 0 or len(oldest) < 2:
        return accounts
    kept = {name: account for name, account in accounts.items() if name not in set(oldest)}
    for name in oldest:
        account = accounts[name]
        total = f"sum-{account.env}"[:64]
        parts = [part for part in (kept.get(total), account) if part is not None]
        kept[total] = ProcessAccount(
            env=account.env,
            sequence=max(part.sequence for part in parts),
            at=max(part.at for part in parts),
            ended=all(part.ended for part in parts),
            counts=_sum_of(parts),
        )
    return kept


def _sum_of(parts: Iterable[ProcessAccount]) -> tuple[tuple[int, str, int, int], ...]:
    tokens: Counter[tuple[int, str]] = Counter()
    samples: Counter[tuple[int, str]] = Counter()
    for part in parts:
        for version, state, n_tokens, n_samples in part.counts:
            tokens[version, state] += n_tokens
            samples[version, state] += n_samples
    return tuple((*key, tokens[key], samples[key]) for key in sorted(tokens))


def is_over(account: ProcessAccount, now: float) -> bool:
    """Whether the process sent its last report, or died before it."""
    return account.ended or now - account.at > SILENT_AFTER_S


# --- the balance ------------------------------------------------------------------------


def end_state(state: str | None, why: str | None) -> str:
    """The end state of the trained tokens of a row by its state in the index."""
    if state == "dropped":
        return drop_state(why or "queue")  # too old, or rows of a group that never was whole
    if state in ("acked", "committed") and why is not None:
        return NO_GRADIENT if why == ZERO_ADVANTAGE else drop_state(why)
    return _STATE_OF.get(state or "", QUEUED)


def run_account(
    accounts: Sequence[ProcessAccount],
    rows: Sequence[RowTotal],
    now: float,
    by: str = "",
    freed: bool = False,
) -> RunAccount:
    """The balance; ``by`` is "env", "version", "step", or empty for the sum of all.

    ``freed``: the archive no longer lists all rows: the tokens it does not list are
    then ``dropped/beyond_the_archive``, and not unknown.
    """
    part = _tokens_of(accounts, rows, now)
    lines, unknown = dict(part.lines), part.unlisted
    if freed and unknown:
        beyond = Line(None, None, None, drop_state("beyond_the_archive"))
        lines[beyond], unknown = StateCount(unknown, 0), 0
    listed = _lines_by(lines, by)
    states: Counter[str] = Counter()
    for line, count in lines.items():
        states[line.state] += count.tokens
    return RunAccount(
        generated=part.generated,
        supplied=part.supplied,
        trained=states[TRAINED],
        useful=states[TRAINED] / part.generated if part.generated else None,
        moving=sum(states[state] for state in MOVING),
        unknown=unknown,
        processes=len(accounts),
        lines=listed,
    )


class _Tokens(NamedTuple):
    """All tokens; ``unlisted``: posted tokens that no row holds."""

    lines: dict[Line, StateCount]
    generated: int
    supplied: int
    unlisted: int


def _tokens_of(
    accounts: Sequence[ProcessAccount], rows: Sequence[RowTotal], now: float
) -> _Tokens:
    """Sums over all environments: a process that joins again may get another name."""
    lines: dict[Line, StateCount] = {}

    def add(line: Line, tokens: int, samples: int) -> None:
        before = lines.get(line, StateCount(0, 0))
        lines[line] = StateCount(before.tokens + tokens, before.samples + samples)

    posted = supplied = listed = 0
    for account in accounts:
        for version, state, tokens, samples in account.counts:
            if state == POSTED:
                posted += tokens
            elif state == SUPPLIED:
                supplied += tokens
            elif state == RECOVERED:
                add(Line(account.env, version, None, JOURNALLED), -tokens, -samples)
            else:
                lost = state == IN_FLIGHT and is_over(account, now)
                add(Line(account.env, version, None, LOST if lost else state), tokens, samples)
    for row in rows:
        state = end_state(row.state, row.why)
        add(Line(row.env, row.version, row.step, state), row.tokens, row.samples)
        listed += row.tokens
    unreported = max(0, listed - posted)
    _take_out(lines, unreported)
    total = sum(count.tokens for count in lines.values())
    unlisted = max(0, posted - listed)
    return _Tokens(lines, total + unlisted - supplied, supplied, unlisted)


def _take_out(lines: dict[Line, StateCount], tokens: int) -> None:
    """Take ``tokens``, which rows hold by now, out of tokens in flight or lost."""
    for line in sorted(lines, key=lambda line: (line.state, line.version or 0)):
        if line.state in (IN_FLIGHT, LOST):
            count = lines[line]
            part = min(tokens, count.tokens)
            lines[line] = StateCount(count.tokens - part, count.samples)
            tokens -= part


def _lines_by(lines: Mapping[Line, StateCount], by: str) -> list[AccountLine]:
    tokens: Counter[Line] = Counter()
    samples: Counter[Line] = Counter()
    for line, count in lines.items():
        key = Line(
            line.env if by == "env" else None,
            line.version if by == "version" else None,
            line.step if by == "step" else None,
            line.state,
        )
        tokens[key] += count.tokens
        samples[key] += count.samples
    ordered = sorted(tokens, key=lambda k: (k.env or "", *_newest(k), -tokens[k], k.state))
    return [
        AccountLine(
            state=key.state,
            tokens=tokens[key],
            samples=samples[key],
            env=key.env,
            version=key.version,
            step=key.step,
        )
        for key in ordered
        if tokens[key] or samples[key]
    ]


def _newest(line: Line) -> tuple[int, int]:
    """Sort key: older versions and steps first, unknown values last."""
    last = 2**62
    version = last if line.version is None or line.version == -1 else line.version
    return version, last if line.step is None else line.step


def with_server_count(account: RunAccount, returned: int) -> RunAccount:
    """The balance with the tokens that servers returned and no process reported as lost."""
    missing = returned - account.generated
    if missing <= 0:
        return account
    lines = [
        msgspec.structs.replace(line, tokens=line.tokens + missing)
        if line.state == LOST
        else line
        for line in account.lines
    ]
    if all(line.state != LOST for line in account.lines):
        lines.append(AccountLine(state=LOST, tokens=missing, samples=0))
    return msgspec.structs.replace(
        account,
        lines=lines,
        generated=returned,
        useful=account.trained / returned,
    )
