"""Validation of an environment: every check in order, and the report.

The first process plays all checks; a second process, with another hash seed, scores the same
replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from atroposlib.envs.cli import read_settings
from atroposlib.envs.runtime.env_runtime import runtime_of
from atroposlib.envs.settings.identity import identity
from atroposlib.errors import ConfigError, boundary
from atroposlib.validation import data, episodes
from atroposlib.validation.bounds import bound_of, unknown_bounds
from atroposlib.validation.judges import JudgeCalls, judge_counter, policy_addresses
from atroposlib.validation.progress import ValidationProgress
from atroposlib.validation.replies import REPLY_CHECKS, Offences
from atroposlib.validation.report import CheckResult, NothingCompared, Proof, Report, Verdict
from atroposlib.validation.subject import Subject, prepare

OTHER_PROCESS_S = 300.0
CASES = "ATROPOS_VALIDATE_CASES"  # variable of the second process: tasks that it reads
JUDGE_CALLS = "ATROPOS_VALIDATE_JUDGE_CALLS"  # variable of the second process
MODE = ("process", "--env.use_wandb", "false")
Look = Callable[[Subject, float], Awaitable[Offences]]
# Checks of whole tasks and rollouts: check -> (function, severity).
LOOKS: dict[str, tuple[Look, Verdict]] = {
    "data.loads": (data.loads, Verdict.FAIL),
    "data.split": (data.split, Verdict.FAIL),
    "leak.prompt": (data.leaks, Verdict.FAIL),
    "episode.repeat": (episodes.repeated_episode, Verdict.FAIL),
    "score.repeat": (episodes.repeated_score, Verdict.FAIL),
    "score.order": (episodes.order, Verdict.FAIL),
    "score.group": (episodes.in_groups, Verdict.FAIL),
    "score.time": (episodes.quick, Verdict.WARN),
    "failure.raises": (episodes.raised, Verdict.FAIL),
    "tools.match": (episodes.tools, Verdict.FAIL),
    "leaves.nothing": (episodes.nothing_left, Verdict.FAIL),
    "timeout": (episodes.cancelled, Verdict.FAIL),
    "score.finite": (episodes.finite, Verdict.FAIL),  # last: checks every rollout
}
NO_CARD = "scores are compared with floor and best of a card=Card(...)"
UNSCORED = "the class gives no group, or leaves the reply out of it"
BEFORE = ("data.loads", "data.split", "leak.prompt")  # the checks of replies


async def validate_subject(
    env_cls: Any, words: Sequence[str], again: Sequence[str], progress: ValidationProgress
) -> Report:
    """Run every check that needs no model; ``words`` are flags like --env.level 2.

    ``again`` is the command of a second process, which calls :func:`print_outcomes`.

    Raises:
        ConfigError: the environment cannot be checked.
        AtroposError: its setup or gold failed.
    """
    started = time.monotonic()
    with private_folder():
        settings = read_settings(env_cls, [*MODE, *words])
        source = await asyncio.to_thread(identity, env_cls, settings.env)
        report = Report(env_cls.name or env_cls.__name__, **source.model_dump())
        subject = await prepare(env_cls, settings)
        progress.calls.leave_out(partial(policy_addresses, subject.env))
        progress.count(lambda: len(subject.played))
        if wrong := unknown_bounds(subject.card):
            raise ConfigError(f"{report.environment}: its card bounds {wrong}: no such check")
        try:
            for check in (
                *BEFORE,
                *REPLY_CHECKS,
                *(look for look in LOOKS if look not in BEFORE),
            ):
                progress.begin(check)
                report.findings.append(await found_by(check, subject))
            if subject.golden:
                progress.begin("a second process")
                apart = await compared([*again, *words], subject, progress.calls.left)
                report.findings = [
                    merge_results(finding, apart) for finding in report.findings
                ]
        finally:
            with boundary(report.environment, None, "close"):
                await runtime_of(subject.env).close()
    report.slow_s = subject.slow_s
    report.seconds = time.monotonic() - started
    return report


async def found_by(check: str, subject: Subject) -> CheckResult:
    limit, reason = bound_of(check, subject.card)
    if limit is None:
        return CheckResult(check, Verdict.SKIP, f"left out by the author: {reason}")
    if check in subject.left_out:
        return CheckResult(check, Verdict.SKIP, subject.left_out[check])
    because = f" ({limit:g}: {reason})" if reason else ""
    if check in LOOKS:
        look, severity = LOOKS[check]
        try:
            offences, text = await look(subject, limit)
        except NothingCompared as reason:
            return CheckResult(check, Verdict.SKIP, str(reason))
        return CheckResult(
            check, severity if offences else Verdict.PASS, text + because, offences
        )
    row = REPLY_CHECKS[check]
    if row.needs_gold and not subject.golden:
        verdict = Verdict.WARN if check == "gold.passes" else Verdict.SKIP
        how = (
            "the class a card = Card(...)"
            if subject.of_class
            else "@environment a card=Card(...)"
        )
        return CheckResult(check, verdict, f"no gold replies: give {how}")
    tries = row.plan(subject)
    if not tries:
        return CheckResult(check, Verdict.SKIP, "nothing to play")
    if subject.card is None:  # its floor is unknown: only errors count
        limit = float("inf")
    played = await subject.play_all(tries)
    offences, text = row.decide(played, limit, subject)
    if subject.of_class and not offences and all(outcome.score is None for outcome in played):
        return CheckResult(check, Verdict.SKIP, f"{UNSCORED}, {len(played)} times")
    if subject.card is None and not offences:
        return CheckResult(
            check, Verdict.SKIP, f"{len(played)} replies, none fails; {NO_CARD}"
        )
    return CheckResult(
        check, row.severity if offences else Verdict.PASS, text + because, offences
    )


def merge_results(result: CheckResult, apart: Sequence[Proof]) -> CheckResult:
    """The finding of score.repeat with what another process found."""
    if result.check != "score.repeat" or not apart or result.verdict is Verdict.SKIP:
        return result
    return CheckResult(result.check, Verdict.FAIL, result.text, [*result.evidence, *apart])


async def compared(
    command: Sequence[str], subject: Subject, judge_calls: int
) -> Sequence[Proof]:
    """Differences of scores and observations in a process with another hash seed.

    ``judge_calls``: most calls of judges in that process.
    """
    most = subject.few(16)
    ours = await episodes.outcomes(subject, most)
    needed = 1 + subject.cases.index(subject.golden[:most][-1])
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    variables = {**os.environ, "PYTHONHASHSEED": seed, CASES: str(needed)}
    variables[JUDGE_CALLS] = str(judge_calls)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=variables,
    )
    try:
        printed, errors = await asyncio.wait_for(process.communicate(), OTHER_PROCESS_S)
    except asyncio.TimeoutError:
        process.kill()
        return [Proof("", note=f"a second process did not end in {OTHER_PROCESS_S:.0f} s")]
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or [""]
        return [Proof("", note=f"fails in a second process: {lines[-1]}")]
    theirs = json.loads(printed.decode().splitlines()[-1])
    return episodes.same_scores(ours, theirs, bound_of("score.repeat", None).value or 0)


def print_outcomes(env_cls: Any, words: Sequence[str]) -> None:
    """Print the outcomes of as many gold replies as the first process played."""

    async def play() -> list[Any]:
        settings = read_settings(env_cls, [*MODE, *words])
        subject = await prepare(env_cls, settings, int(os.environ[CASES]))
        calls.leave_out(partial(policy_addresses, subject.env))
        rows = await episodes.outcomes(subject, len(subject.cases))
        await runtime_of(subject.env).close()
        return rows

    calls = JudgeCalls(int(os.environ[JUDGE_CALLS]))
    with judge_counter(calls):
        print(json.dumps(asyncio.run(play())))


@contextlib.contextmanager
def private_folder() -> Iterator[None]:
    """A new folder of temporary files, so that leftovers can be counted."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(
        prefix="atropos-validate-", ignore_cleanup_errors=True
    ) as path:
        tempfile.tempdir = os.environ["TMPDIR"] = path
        try:
            yield
        finally:
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")
            if variable is not None:
                os.environ["TMPDIR"] = variable
