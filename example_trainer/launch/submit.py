"""Writes a plan's sbatch scripts, and submits them unless it is only asked to show them."""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from atroposlib.errors import AtroposError
from example_trainer.launch import slurm
from example_trainer.launch.plan import Plan
from example_trainer.settings.config import TrainingConfig

SUBMIT_WITHIN_S = 60.0
TOKENS, TOKEN = "tokens", "token"  # of the rollout API: digests, and the token itself
ENDPOINTS = "endpoints"


class SubmitFailed(AtroposError):
    """sbatch said no; what was submitted before is named and was cancelled."""


def write(plan: Plan, cfg: TrainingConfig) -> list[slurm.Job]:
    """Scripts, plan and token below ``<out>/launch``; addresses of an earlier run go.

    Raises:
        ConfigError: a value cannot stand in a script.
    """
    found = slurm.jobs(plan, cfg)
    folder = plan.launched
    (folder / ENDPOINTS).mkdir(parents=True, exist_ok=True)
    (plan.directory / "logs").mkdir(exist_ok=True)
    for old in (folder / ENDPOINTS).iterdir():
        old.unlink()
    slurm.plan_path(plan).write_text(
        json.dumps(plan.model_dump(), indent=2) + "\n", encoding="utf-8"
    )
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    for name, text in ((TOKENS, f"admin {digest}\n"), (TOKEN, f"{token}\n")):
        path = folder / name
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    for job in found:
        script_path(plan, job).write_text(job.script, encoding="utf-8")
    return found


def script_path(plan: Plan, job: slurm.Job) -> Path:
    return plan.launched / f"{job.name}.sbatch"


def commands(plan: Plan, found: Sequence[slurm.Job], ids: dict[str, str]) -> list[list[str]]:
    """One sbatch per job; where the id of an earlier one is not known its name stands."""
    lines = []
    for job in found:
        words = ["sbatch", "--parsable"]
        if job.after:
            known = ":".join(ids.get(name, f"<{name}>") for name in job.after)
            words += [f"--dependency=after:{known}"]
        lines.append([*words, str(script_path(plan, job))])
    return lines


def dry_run(plan: Plan, found: Sequence[slurm.Job], say: Callable[[str], None]) -> None:
    for words in commands(plan, found, {}):
        say(shlex.join(words))


def submit(
    plan: Plan, found: Sequence[slurm.Job], say: Callable[[str], None] = print
) -> dict[str, str]:
    """Submit in order; returns job ids by name.

    Raises:
        SubmitFailed: one was refused; those before it were cancelled.
    """
    ids: dict[str, str] = {}
    for i, job in enumerate(found):
        # The trainer comes last: when it starts, it finds the ids of all the others.
        if job.name == "trainer":
            text = "".join(f"{one}\n" for one in ids.values())
            (plan.launched / slurm.JOBS_FILE).write_text(text, encoding="utf-8")
        words = commands(plan, found, ids)[i]
        try:
            ids[job.name] = _sbatch(words)
        except SubmitFailed:
            if ids:
                subprocess.run(["scancel", *ids.values()], check=False)
            raise
        say(f"{job.name}: job {ids[job.name]}")
    return ids


def _sbatch(words: Sequence[str]) -> str:
    """The job id: sbatch --parsable answers ``id`` or ``id;cluster``."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=SUBMIT_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmitFailed(f"cannot run sbatch: {error}") from error
    answer = done.stdout.strip().split(";")[0]
    if done.returncode != 0 or not answer.isdigit():
        raise SubmitFailed(
            f"{shlex.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return answer
