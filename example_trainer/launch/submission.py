"""Submission of the scripts to SLURM, in order, and what a refusal means."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from atroposlib.errors import AtroposError, ConfigError
from atroposlib.utils.io import write_whole
from example_trainer.launch.plan import Plan
from example_trainer.launch.slurm import JOBS_FILE, LINK, SlurmJob, script_path

SUBMIT_TIMEOUT_S = 60.0


class SubmitFailed(AtroposError):
    """sbatch refused a job; jobs submitted before it were cancelled."""


def command(
    plan: Plan, job: SlurmJob, ids: Mapping[str, str], link: int = 0, behind: str = ""
) -> list[str]:
    """Return the sbatch command; an unknown job id is shown as the job's name.

    The first ``link`` of a chain starts after other jobs, each further link after its
    predecessor, whose id is that of the job's name. A job that waits for none of its run starts
    when the job ``behind`` has ended, the trainer of another run.
    """
    words = ["sbatch", "--parsable"]
    if plan.slurm.chain:
        words += [f"--export=ALL,{LINK}={link}"]
    if link:
        words += [f"--dependency=afterany:{ids[job.name]}"]
    elif job.after:
        known = ":".join(ids.get(name, f"<{name}>") for name in job.after)
        words += [f"--dependency=after:{known}"]
    elif behind:
        words += [f"--dependency=afterany:{behind}"]
    return [*words, str(script_path(plan, job))]


def require_ended(plan: Plan) -> None:
    """Refuse a folder whose jobs SLURM still has: new files would take theirs away.

    Raises:
        ConfigError: names the jobs.
    """
    if alive := living_jobs(plan):
        raise ConfigError(
            f"{plan.directory} is the folder of jobs that SLURM still has: "
            f"scancel {' '.join(alive)}, or name another folder by out=FOLDER"
        )


def living_jobs(plan: Plan) -> list[str]:
    """Return the ids of jobs of the run that SLURM still has; none where there is no SLURM."""
    file = plan.launched / JOBS_FILE
    ids = file.read_text(encoding="utf-8").split() if file.exists() else []
    if not ids:
        return []
    words = ["squeue", "--noheader", "--format=%A", f"--jobs={','.join(ids)}"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=SUBMIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []  # no SLURM here, as with --dry-run on another machine
    return sorted(set(done.stdout.split()), key=int)


def last_trainer_job(plan: Plan) -> str:
    """Return the id of the trainer's job, of a chain the last, which ends with the run."""
    return (plan.launched / JOBS_FILE).read_text(encoding="utf-8").split()[-1]


def submit(
    plan: Plan,
    found: Sequence[SlurmJob],
    print_line: Callable[[str], None] = print,
    behind: str = "",
) -> dict[str, str]:
    """Submit in order; return job ids by name, of a chain the ids of its first jobs.

    Args:
        behind: see :func:`command`.

    Raises:
        SubmitFailed: a job was refused; the jobs before it were cancelled.
    """
    ids: dict[str, str] = {}
    all_ids: list[str] = []
    for job in found:
        last = dict(ids)  # latest ids of the chain
        # The trainer is submitted last, so that the ids of all other jobs exist at its start.
        if job.name == "trainer":
            _note_jobs(plan, all_ids)
        for link in range(plan.slurm.chain + 1):
            try:
                last[job.name] = _sbatch(command(plan, job, last, link, behind), job)
            except SubmitFailed:
                if all_ids:
                    subprocess.run(["scancel", *all_ids], check=False)
                raise
            all_ids.append(last[job.name])
            ids.setdefault(job.name, last[job.name])
            print_line(f"{job.name}: job {last[job.name]}")
    _note_jobs(plan, all_ids)  # any job may end the rest
    return ids


def _note_jobs(plan: Plan, ids: Sequence[str]) -> None:
    """Write the ids of the jobs that end with the run."""
    write_whole(plan.launched / JOBS_FILE, "".join(f"{job}\n" for job in ids))


def _sbatch(words: Sequence[str], job: SlurmJob) -> str:
    """Return the job id: sbatch --parsable prints ``id`` or ``id;cluster``."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=SUBMIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubmitFailed(f"cannot run sbatch: {error}") from error
    answer = done.stdout.strip().split(";")[0]
    if done.returncode != 0 or not answer.isdigit():
        output = done.stderr.strip() or done.stdout.strip()
        raise SubmitFailed(f"sbatch refused {job.name}: {output} ({suspects(job, output)})")
    return answer


def suspects(job: SlurmJob, said: str) -> str:
    """The settings that a refusal of sbatch means: by their names, else all of the job's."""
    words = said.lower().replace("-", " ")
    settings = [f"{name}={value}" if value else name for name, value in job.options.items()]
    named = [
        setting
        for setting, (name, value) in zip(settings, job.options.items())
        if name.rpartition(".")[2].replace("-", " ") in words
        or (value and value.lower() in words)
    ]
    return ", ".join(named or settings)
