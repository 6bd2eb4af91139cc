"""Scripts for sbatch: their text and files.

A job per role: api, inference (an array, a server each), each teacher and environment, trainer. A script
holds its resources, the user's setup lines and an ``srun`` of ``atropos-launch node``, which
makes the decisions that depend on the node, in Python.

    end of a job                         its script
    time limit is near (slurm.grace_s)   ends the process, queues the job again; with
                                         slurm.chain the next job of the chain goes on
    preempted, requeued, node lost       leaves the other jobs alone: SLURM starts it again
    its process died (not the trainer)   starts it again, up to ``restarts`` times
    trainer: exit 0 and its record of    ends the other jobs: the run is over
    the end, cancelled, or its retries
    are used up
    SLURM has started the job again      a script that lives on leaves the other jobs alone
    elsewhere
    exit code 2, refused settings        ends all jobs: another start would fail alike
"""

from __future__ import annotations

import hashlib
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.io import write_whole
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan, SbatchOptions
from example_trainer.launch.teachers.wiring import teachers_named
from example_trainer.state import end

JOBS_FILE = "jobs"  # ids of all jobs, a line each
LINK = "ATROPOS_CHAIN_LINK"  # number of a job in its chain
WAIT_LINE_S = 60  # between two lines about jobs that have not started
TOKENS, TOKEN = "tokens", "token"  # files of the rollout API: digests, and the token
ENDPOINTS = "endpoints"
FIRST_PORT, PORTS = 20_000, 10_000  # meeting ports of the trainer's nodes, by job id


@dataclass(frozen=True)
class SlurmJob:
    """A job to submit.

    Attributes:
        after: names of jobs that must have started.
        options: its sbatch options, by the setting that each comes from.
    """

    name: str
    script: str
    after: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def jobs(plan: Plan, trainer_retries: int) -> list[SlurmJob]:
    """Return all jobs in order of submission; the trainer is the last.

    Jobs with GPUs wait for the start of jobs without GPUs. The exception is an environment
    that needs addresses of servers or a teacher, and starts behind their jobs.
    """
    api = _serve(_node(plan, "api"), plan.restarts)
    scripts = [_job(plan, "api", "api", plan.slurm.api, f"{_waiting_lines()}\n\n{api}")]
    late: list[SlurmJob] = []
    for number, wanted in enumerate(plan.environments):
        name = f"env-{number}-{roles.environment_name(plan, number)}"
        options = _array(plan.slurm.environments, wanted.count)
        body = _serve(_node(plan, "environment", "--index", str(number)), plan.restarts)
        needs = ["inference"] if roles.needs_servers(wanted) else []
        needs += [f"teacher-{teacher}" for teacher in dict.fromkeys(teachers_named(wanted))]
        after = ("api", *needs)
        job = _job(plan, name, "environments", options, body, after)
        (late if needs else scripts).append(job)
    first = tuple(job.name for job in scripts)
    teachers = [_teacher(plan, number, first) for number in range(len(plan.teachers))]
    scripts += [_inference(plan, first), *teachers, *late]
    return [*scripts, _trainer(plan, trainer_retries, tuple(job.name for job in scripts))]


def _waiting_lines() -> str:
    return f"""\
while sleep {WAIT_LINE_S} < /dev/null > /dev/null 2>&1; do
  squeue --noheader --states=PENDING --format="waiting for job %i (%j): %T, %r" \\
    --jobs="$(paste -sd, "$JOBS")" 2> /dev/null | grep -v Dependency >&2 || true
done & trap "kill $!" EXIT"""


def _inference(plan: Plan, after: tuple[str, ...]) -> SlurmJob:
    """The job of ``slurm.servers_per_job`` servers, as an array if there are more."""
    here, gpus = plan.slurm.servers_per_job, roles.gpus_of(plan)["inference"]
    wanted = here * gpus
    options = {"gpus-per-node": wanted, **plan.slurm.inference}
    per_node = options["gpus-per-node"]
    if plan.inference.count % here:
        raise ConfigError(
            f"inference.count={plan.inference.count} is no multiple of"
            f" slurm.servers_per_job={here}"
        )
    if str(per_node).isdecimal() and int(str(per_node)) < wanted:
        raise ConfigError(
            f"slurm.inference.gpus-per-node={per_node} is too few for slurm.servers_per_job={here}"
            f" servers of inference.tensor_parallel={gpus} GPUs"
        )
    words: tuple[str, ...] = ()
    first = "${SLURM_ARRAY_TASK_ID:-0}"
    if here > 1:  # the process that starts the servers restarts each
        words, first = ("--count", str(here)), f"$(({first} * {here}))"
    line = _node(plan, "inference", *words, "--index", raw=(f'"{first}"',))
    body = _serve(line, 0 if words else plan.restarts)
    options = _array(options, plan.inference.count // here)
    return _job(plan, "inference", "inference", options, body, after)


def _teacher(plan: Plan, number: int, after: tuple[str, ...]) -> SlurmJob:
    name, section = list(plan.teachers.items())[number]
    options = {"gpus-per-node": roles.gpus_of_server(section), **plan.slurm.teachers}
    body = _serve(_node(plan, "teacher", "--index", str(number)), plan.restarts)
    return _job(plan, f"teacher-{name}", "teachers", options, body, after)


def _trainer(plan: Plan, retries: int, after: tuple[str, ...]) -> SlurmJob:
    options: SbatchOptions = {
        "nodes": plan.trainer.nodes,
        "gpus-per-node": roles.gpus_of(plan)["trainer"],
    }
    meet = f'"${{NODES[0]}}:$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"'
    line = _node(plan, "trainer", "--meet", raw=(meet,), srun=("--kill-on-bad-exit=1",))
    body = f"""\
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

for attempt in $(seq 0 {retries}); do
  export ATROPOS_RUN_ID=$((attempt + ${{SLURM_RESTART_COUNT:-0}} + ${{{LINK}:-0}}))
  step {line}
  if [ "$status" = 0 ] && [ -e {shlex.quote(str(plan.end_record))} ]; then over "trainer: done" 0; fi
  if [ "$status" = 2 ]; then over "trainer: refused" 2; fi
  if [ "$signalled" = USR1 ]; then again; fi
  if [ "$signalled" = TERM ]; then
    if is_current; then over "trainer: cancelled" 1; fi
    exit "$status"
  fi
  echo "trainer: attempt $attempt of {retries} failed" >&2
done
over "trainer: failed" 1"""
    return _job(plan, "trainer", "trainer", {**options, **plan.slurm.trainer}, body, after)


def _serve(line: str, restarts: int) -> str:
    """The body of a job whose process serves until it is ended."""
    return f"""\
for attempt in $(seq 0 {restarts}); do
  step {line}
  if [ "$signalled" = USR1 ]; then again; fi
  if [ "$signalled" = USR2 ]; then echo "the run is over" >&2; exit 0; fi
  if [ -n "$signalled" ] || [ "$status" = 0 ]; then exit "$status"; fi
  if [ "$status" = 2 ]; then over "$SLURM_JOB_NAME: refused" 2; fi
  echo "attempt $attempt of {restarts} failed ($status)" >&2
  # A process that SLURM has lost holds its lock for half a minute.
  if [ "$attempt" -lt {restarts} ]; then pause $((attempt * 15 + 1)); fi
done
exit "$status\""""


# The shell waits for its step in the background: bash runs a trap only between two commands, and a
# signal ends ``wait`` early. The step is signalled through SLURM, because srun kills it on TERM.
# A job that SLURM ends in order to start it again already counts a restart more.
FUNCTIONS = """\
signalled="" status=0 pid=""
for one in USR1 USR2 TERM; do trap "told $one" "$one"; done
told() {
  signalled=$1
  case $1 in
    USR1) echo "the time limit is near: the process is told to end, and what srun says of that is no fault" ;;
    USR2) echo "the run is over: the process is told to end, and what srun says of that is no fault" ;;
    TERM) echo "SLURM ends this job: the process is told to end, and what srun says of that is no fault" ;;
  esac >&2
  scancel --signal=TERM "$SLURM_JOB_ID" || true
}
step() {
  status=75
  if [ -n "$signalled" ]; then return; fi
  "$@" & pid=$!
  until wait "$pid" || ! kill -0 "$pid" 2> /dev/null; do :; done # a signal ends wait early
  status=0
  wait "$pid" || status=$?
}
pause() {
  sleep "$1" & wait "$!" || true # a signal ends wait
}
again() {
  if [ -n "${ATROPOS_CHAIN_LINK:-}" ]; then
    echo "the time limit is near: the next job of the chain goes on" >&2
    exit 75
  fi
  echo "the time limit is near: the job is queued again" >&2
  scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
  exit 75
}
over() { # the other jobs have nothing left to do: those that run may end in order
  if ! is_current; then
    echo "$1, but SLURM has queued this job again: its other jobs go on" >&2
    exit 75
  fi
  echo "$1: the run is over, its other jobs are ended" >&2
  others=$(grep -vx "$SLURM_JOB_ID" "$JOBS" | paste -sd" ") || exit "$2"
  if [ -z "$others" ]; then exit "$2"; fi # scancel without ids would mean every job
  scancel --quiet --state=PENDING $others || true
  scancel --quiet --batch --signal=USR2 $others || true
  for _ in $(seq 15); do
    [ -n "$(squeue --noheader --jobs="${others// /,}" 2> /dev/null)" ] || break
    sleep 1
  done
  scancel --quiet $others || true
  exit "$2"
}
is_current() { # no answer is no "no": the other jobs would go on for ever
  local shown
  for _ in $(seq 60); do # a cut of 10 minutes: by then SLURM has given the node up
    shown=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>&1) && break
    if [[ $shown == *"Invalid job id"* ]]; then break; fi
    echo "SLURM's controller does not answer: asking again in 10 s" >&2
    pause 10
  done
  [[ $shown == *" Restarts=${SLURM_RESTART_COUNT:-0} "* && $shown != *" JobState=NODE_FAIL "* ]]
}"""


def _array(options: SbatchOptions, count: int) -> SbatchOptions:
    return {**({"array": f"0-{count - 1}"} if count > 1 else {}), **options}


def _job(
    plan: Plan,
    name: str,
    section: str,
    options: SbatchOptions,
    body: str,
    after: tuple[str, ...] = (),
) -> SlurmJob:
    """Build the script; the options of the section override the general options."""
    log = "%x-%A_%a.log" if "array" in options else "%x-%j.log"
    header: SbatchOptions = {
        "job-name": f"{plan.name}-{name}",
        "output": str(plan.directory / "logs" / log),
        "open-mode": "append",
        "no-requeue" if plan.slurm.chain else "requeue": "",
        "signal": f"B:USR1@{plan.slurm.grace_s}" if plan.slurm.grace_s else None,
        "nodes": 1,
        "ntasks-per-node": 1,
        **plan.slurm.options,
        **options,
    }
    wanted = {key: value for key, value in header.items() if _is_given(key, value)}
    lines = ["#!/bin/bash", *(_option(key, value) for key, value in wanted.items())]
    lines += ["", "set -euo pipefail", *plan.slurm.setup, ""]
    lines += [f"JOBS={shlex.quote(str(plan.launched / JOBS_FILE))}", FUNCTIONS, "", body]
    sources = {
        f"slurm.{section if key in options else 'options'}.{key}": str(value)
        for key, value in wanted.items()
    }
    return SlurmJob(name, "\n".join(lines) + "\n", after, sources)


def _is_given(key: str, value: str | int | None) -> bool:
    return value is not None and not (key.startswith("gpus") and str(value) == "0")


def _option(key: str, value: str | int | None) -> str:
    text = str(value)
    if not key.replace("-", "").isalnum() or "\n" in text:
        raise ConfigError(f"{key}={text!r} cannot stand in an #SBATCH line")
    return f"#SBATCH --{key}" + (f"={shlex.quote(text)}" if text else "")


def _node(
    plan: Plan, role: str, *words: str, raw: tuple[str, ...] = (), srun: tuple[str, ...] = ()
) -> str:
    """Build an srun of the role; ``raw`` are words that the shell expands."""
    plan_file = str(plan_path(plan))
    container = plan.slurm.container.get(role, ())
    command = ["srun", *srun, *plan.slurm.srun, *container, plan.slurm.python]
    command += ["-m", "example_trainer.launch", "node", "--plan", plan_file, "--role", role]
    return " ".join([shlex.join([*command, *words]), *raw])


def plan_path(plan: Plan) -> Path:
    """Return the path of the plan that the jobs read."""
    return plan.launched / "plan.json"


def write(plan: Plan, trainer_retries: int) -> list[SlurmJob]:
    """Write scripts, plan and token below ``<out>/launch``; delete earlier addresses.

    Raises:
        ConfigError: a value cannot stand in a script.
    """
    scripts = jobs(plan, trainer_retries)
    write_files(plan)
    for job in scripts:
        write_whole(script_path(plan, job), job.script)
    return scripts


def write_files(plan: Plan) -> None:
    """Write what the nodes read below ``<out>/launch``: plan and token, no address yet."""
    folder = plan.launched
    (folder / ENDPOINTS).mkdir(parents=True, exist_ok=True)
    (plan.directory / "logs").mkdir(exist_ok=True)
    end.forget(plan.end_record)
    end.expect_groups(plan.end_record)
    for old in (folder / ENDPOINTS).iterdir():
        old.unlink()
    roles.write_yaml(plan_path(plan), dump_plan(plan))
    token = _held_token(folder / TOKEN) or secrets.token_urlsafe(32)
    (folder / roles.STORE).unlink(missing_ok=True)
    for name, text in secret_files(plan, token).items():
        write_whole(folder / name, text)


def dump_plan(plan: Plan) -> dict[str, Any]:
    """The plan for nodes that may work in another folder."""
    return {
        **plan.model_dump(),
        "out": str(plan.directory),
        "store": roles.redacted_store(plan),
    }


def secret_files(plan: Plan, token: str) -> dict[str, str]:
    """Return files that this user alone may read: token, its digest, address of the store."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    files = {TOKENS: f"admin {digest}\n", TOKEN: f"{token}\n"}
    if plan.store is not None and roles.redacted_store(plan) != plan.store:
        files[roles.STORE] = f"{plan.store}\n"
    return files


def _held_token(path: Path) -> str:
    """The token of an earlier submission of the run, whose jobs may still use it; or nothing."""
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def script_path(plan: Plan, job: SlurmJob) -> Path:
    return plan.launched / f"{job.name}.sbatch"
