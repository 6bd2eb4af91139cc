"""atropos env validate ENVIRONMENT: check an environment before a GPU is paid for.

    atropos env validate wordle
    atropos env validate wordle.py --strict --out reports/validate.json --env.level 2
    atropos env validate wordle --model http://127.0.0.1:9001/v1

Scripted replies take the place of a model: gold, empty, repeated, broken, swapped, injected.
Exit status: 0 passed, 1 a check failed, 2 it could not be checked, 3 a fault of the checks.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from atroposlib.cli import env_files
from atroposlib.envs.settings.identity import report_path
from atroposlib.errors import AtroposError, RolloutError, boundary
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser, whole
from atroposlib.utils.io import existing_folder
from atroposlib.validation.judges import JudgeCalls, JudgeCallsSpent, judge_counter
from atroposlib.validation.progress import ValidationProgress, progress_reporter
from atroposlib.validation.report import Report
from atroposlib.validation.validate import print_outcomes, validate_subject
from atroposlib.wire import EnvSource

PROG = "atropos env validate"
MOST_JUDGE_CALLS = 200  # default
FAILED, NOT_CHECKABLE, INTERNAL = 1, 2, 3
AGAIN = "from atroposlib.cli.env_validate import again; again()"
FAULT = "the checks themselves"  # stage of an error of this package


def main(argv: Sequence[str] | None = None) -> int:
    """Print and write the findings; returns the exit status."""
    parser = CommandParser(prog=PROG, description=__doc__)
    parser.add_argument("environment", metavar="ENVIRONMENT", help=env_files.USAGE)
    parser.add_argument("--model", metavar="URL", help="a server for the checks with a model")
    parser.add_argument("--strict", action="store_true", help="warnings fail too")
    parser.add_argument("--out", type=Path, default=Path("validate.json"), metavar="FILE")
    about = "of models that are not the policy (%(default)s)"
    parser.add_argument(
        "--max-judge-calls", type=whole(0), default=MOST_JUDGE_CALLS, metavar="N", help=about
    )
    options, words = parser.parse_known_args(argv)
    options = parser.with_log_settings(options, "error")
    logs.configure(PROG, options.log_format, options.log_level)
    if not os.access(folder := existing_folder(options.out.parent), os.W_OK):
        parser.error(f"--out {options.out}: {folder} cannot be written; name another file")
    progress = ValidationProgress(JudgeCalls(options.max_judge_calls))
    tell = partial(print, f"{PROG}:", file=sys.stderr, flush=True)
    try:
        with judge_counter(progress.calls), progress_reporter(progress, tell):
            report = validate_apart(options.environment, words, options.model, progress)
    except JudgeCallsSpent as error:
        logs.report("error", f"check {progress.check}: {error}")
        return NOT_CHECKABLE
    except RolloutError as error:
        logs.report("error", error)
        return INTERNAL if error.stage == FAULT else NOT_CHECKABLE
    except AtroposError as error:
        logs.report("error", error)
        return NOT_CHECKABLE
    print(report.table(), flush=True)  # first: the disk may refuse the file
    report.write(options.out)
    source = EnvSource(package=report.package, version=report.version, digest=report.digest)
    if report.passed(options.strict) and source.package:
        report.write(report_path(source, report.environment))
    if progress.calls.count:
        print(f"calls of other models: {progress.calls.addresses()}")
    print(f"report: {options.out}", flush=True)
    return 0 if report.passed(options.strict) else FAILED


async def validate(
    reference: str, words: Sequence[str] = (), progress: ValidationProgress | None = None
) -> Report:
    """Every check that needs no model; ``words`` are flags of the environment.

    Raises AtroposError: it cannot be imported, set up or checked.
    """
    again = (sys.executable, "-c", AGAIN, reference)
    progress = progress or ValidationProgress(JudgeCalls(MOST_JUDGE_CALLS))
    return await validate_subject(env_files.load(reference), words, again, progress)


def again() -> None:
    """The second process of a validation, with another hash seed."""
    print_outcomes(env_files.load(sys.argv[1]), sys.argv[2:])


def validate_apart(
    reference: str, words: Sequence[str], model: str | None, progress: ValidationProgress
) -> Report:
    """The report; threads that a hanging reward keeps do not hold the program back."""

    async def run() -> Report:
        with boundary(reference, None, FAULT):
            report = await validate(reference, words, progress)
            if model:
                from atroposlib.validation.with_model import measure_samples

                env_cls = env_files.load(reference)
                progress.begin(f"rollouts of the model at {model}")
                report.findings += await measure_samples(env_cls, words, model, progress.calls)
            return report

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


def run_and_exit(argv: Sequence[str] | None = None) -> int:
    """The command line; ends the process where a thread of the environment never does."""
    status = main(argv)
    if any(thread.name.startswith("asyncio_") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
