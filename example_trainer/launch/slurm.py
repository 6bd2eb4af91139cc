"""Scripts for sbatch: their text, writing and submission.

One job per role: api, inference (an array, one server each), one per environment, trainer. A
script holds its resources, the user's setup lines and one ``srun`` of ``atropos-launch node``,
which makes the decisions that depend on the node, in Python. The trainer's script restarts the
trainer after a failure and cancels the other jobs at the end.
"""

from __future__ import annotations

import hashlib
import secrets
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atroposlib.errors import AtroposError, ConfigError
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan

JOBS_FILE = "jobs"  # ids of the other jobs, one a line
RENDEZVOUS_PORT = 29500


@dataclass(frozen=True)
class SlurmJob:
    """A job to submit. ``after``: names of jobs that must have started."""

    name: str
    script: str
    after: tuple[str, ...] = ()


def jobs(plan: Plan, trainer_retries: int) -> list[SlurmJob]:
    """Return all jobs in order of submission; the trainer is the last."""
    found = [
        SlurmJob("api", _script(plan, "api", plan.slurm.api, _node(plan, "api"))),
        SlurmJob("inference", inference_script(plan)),
    ]
    for number, wanted in enumerate(plan.environments):
        name = f"env-{number}-{roles.environment_name(plan, number)}"
        options = _array(plan.slurm.environments, wanted.count)
        line = _node(plan, "environment", "--index", str(number))
        found.append(SlurmJob(name, _script(plan, name, options, line), ("api", "inference")))
    found.append(
        SlurmJob("trainer", trainer_script(plan, trainer_retries), ("api", "inference"))
    )
    return found


def inference_script(plan: Plan) -> str:
    gpus = {"gpus-per-node": plan.inference.tensor_parallel}
    options = _array({**gpus, **plan.slurm.inference}, plan.inference.count)
    index = ('"${SLURM_ARRAY_TASK_ID:-0}"',)
    return _script(plan, "inference", options, _node(plan, "inference", "--index", raw=index))


def trainer_script(plan: Plan, retries: int) -> str:
    options: dict[str, str | int] = {
        "nodes": plan.trainer.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": plan.trainer.nproc,
    }
    jobs_file = shlex.quote(str(plan.launched / JOBS_FILE))
    head = '"${NODES[0]}:' + str(RENDEZVOUS_PORT) + '"'
    line = _node(plan, "trainer", "--meet", raw=(head,), srun=("--kill-on-bad-exit=1",))
    body = f"""\
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# Whatever ends this job, the others have nothing left to do.
trap 'xargs -r scancel < {jobs_file}' EXIT

for attempt in $(seq 0 {retries}); do
  export ATROPOS_RUN_ID=$attempt
  if {line}
  then
    exit 0
  fi
  echo "trainer: attempt $attempt of {retries} failed" >&2
done
exit 1"""
    return _script(plan, "trainer", {**options, **plan.slurm.trainer}, body)


def _array(options: Mapping[str, str | int], count: int) -> dict[str, str | int]:
    return {**({"array": f"0-{count - 1}"} if count > 1 else {}), **options}


def _script(plan: Plan, name: str, options: Mapping[str, str | int], body: str) -> str:
    """Build the script; the options of the role override the general ones."""
    log = "%x-%A_%a.log" if "array" in options else "%x-%j.log"
    header: dict[str, str | int] = {
        "job-name": f"{plan.name}-{name}",
        "output": str(plan.directory / "logs" / log),
        "nodes": 1,
        "ntasks-per-node": 1,
        **plan.slurm.options,
        **options,
    }
    lines = ["#!/bin/bash", *(_option(key, value) for key, value in header.items())]
    lines += ["", "set -euo pipefail", *plan.slurm.setup, "", body]
    return "\n".join(lines) + "\n"


def _option(key: str, value: str | int) -> str:
    text = str(value)
    if not key.replace("-", "").isalnum() or "\n" in text:
        raise ConfigError(f"{key}={text!r} cannot stand in an #SBATCH line")
    return f"#SBATCH --{key}" + (f"={shlex.quote(text)}" if text else "")


def _node(
    plan: Plan, role: str, *words: str, raw: tuple[str, ...] = (), srun: tuple[str, ...] = ()
) -> str:
    """Build one srun of the role; ``raw`` are words that the shell expands."""
    plan_file = str(plan_path(plan))
    container = plan.slurm.container.get(role, ())
    command = ["srun", *srun, *plan.slurm.srun, *container, plan.slurm.python]
    command += ["-m", "example_trainer.launch", "node", "--plan", plan_file, "--role", role]
    return " ".join([shlex.join([*command, *words]), *raw])


def plan_path(plan: Plan) -> Path:
    """Return the path of the plan that the jobs read."""
    return plan.launched / "plan.json"


SUBMIT_TIMEOUT_S = 60.0
TOKENS, TOKEN = "tokens", "token"  # of the rollout API: digests, and the token itself
ENDPOINTS = "endpoints"


class SubmitFailed(AtroposError):
    """sbatch refused a job; jobs submitted before it were cancelled."""


def write(plan: Plan, trainer_retries: int) -> list[SlurmJob]:
    """Write scripts, plan and token below ``<out>/launch``; delete earlier addresses.

    Raises:
        ConfigError: a value cannot stand in a script.
    """
    found = jobs(plan, trainer_retries)
    folder = plan.launched
    (folder / ENDPOINTS).mkdir(parents=True, exist_ok=True)
    (plan.directory / "logs").mkdir(exist_ok=True)
    for old in (folder / ENDPOINTS).iterdir():
        old.unlink()
    roles.write_yaml(plan_path(plan), plan.model_dump())
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


def script_path(plan: Plan, job: SlurmJob) -> Path:
    return plan.launched / f"{job.name}.sbatch"


def command(plan: Plan, job: SlurmJob, ids: Mapping[str, str]) -> list[str]:
    """Return the sbatch command; an unknown job id is shown as the job's name."""
    words = ["sbatch", "--parsable"]
    if job.after:
        known = ":".join(ids.get(name, f"<{name}>") for name in job.after)
        words += [f"--dependency=after:{known}"]
    return [*words, str(script_path(plan, job))]


def submit(
    plan: Plan, found: Sequence[SlurmJob], print_line: Callable[[str], None] = print
) -> dict[str, str]:
    """Submit in order; return job ids by name.

    Raises:
        SubmitFailed: one was refused; those before it were cancelled.
    """
    ids: dict[str, str] = {}
    for job in found:
        # The trainer is submitted last, so that the ids of all other jobs exist at its start.
        if job.name == "trainer":
            text = "".join(f"{one}\n" for one in ids.values())
            (plan.launched / JOBS_FILE).write_text(text, encoding="utf-8")
        try:
            ids[job.name] = _sbatch(command(plan, job, ids))
        except SubmitFailed:
            if ids:
                subprocess.run(["scancel", *ids.values()], check=False)
            raise
        print_line(f"{job.name}: job {ids[job.name]}")
    return ids


def _sbatch(words: Sequence[str]) -> str:
    """Return the job id: sbatch --parsable prints ``id`` or ``id;cluster``."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=SUBMIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmitFailed(f"cannot run sbatch: {error}") from error
    answer = done.stdout.strip().split(";")[0]
    if done.returncode != 0 or not answer.isdigit():
        raise SubmitFailed(
            f"{shlex.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return answer
