"""A sweep by each command of the launcher: local, check, ray, slurm, k8s."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from atroposlib.utils.command.folder_lock import FolderLock
from example_trainer.launch import k8s, slurm, submission
from example_trainer.launch.gpus import visible_gpus
from example_trainer.launch.local import ANOTHER_FOLDER
from example_trainer.launch.plan import Plan
from example_trainer.launch.servers import choose_engine
from example_trainer.launch.sweep.combinations import setting_texts
from example_trainer.launch.sweep.queue import (
    AGAIN,
    QueueOptions,
    check_runs,
    device_parts,
)
from example_trainer.launch.sweep.runs import (
    SweepRun,
    record_of,
    require_apart,
    require_submittable_runs,
    write_files,
)


def check_sweep(base: Plan, runs: Sequence[SweepRun], options: QueueOptions) -> int:
    """Check every run as the queue would start it, and print the settings of each.

    Raises:
        ConfigError: names every problem.
    """
    with FolderLock(base.directory, ANOTHER_FOLDER):
        devices = device_parts(visible_gpus(), options.jobs)
        for line in check_runs(runs, devices, options):
            print(f"{base.name}: {line}")
    for run in runs:
        print(f"{run.name}: {shlex.join(setting_texts(run.combination))}")
    print(f"{base.name}: the sweep is sound, {len(runs)} runs, in {base.directory}")
    return 0


def submit_sweep(base: Plan, runs: Sequence[SweepRun], jobs: int, dry: bool) -> int:
    """Submit the jobs of every run that is not done and has none; ``dry`` prints the commands.

    With ``jobs`` a run starts when the trainer of the run so many places before it has ended; 0:
    SLURM decides.

    Raises:
        ConfigError: a run cannot be used; nothing was submitted.
        SubmitFailed: a job was refused; the jobs of earlier runs stay.
    """
    with FolderLock(base.directory, ANOTHER_FOLDER):
        require_apart(runs)
        for run in runs:
            run.plan.inference.engine = choose_engine(run.plan.inference.engine)
            slurm.jobs(run.plan, run.cfg.trainer_retries)  # an error costs no submission
        require_submittable_runs(runs, plugins_here=True)
        write_files(base, runs)
        trainers = list[str]()
        for run in runs:
            if record_of(run).state == "done":
                print(f"# {run.name}: done")
                continue
            if alive := submission.living_jobs(run.plan):
                print(f"# {run.name}: SLURM has its jobs {' '.join(alive)}")
                continue
            print(f"# {run.name}: {run.plan.directory}", flush=True)
            behind = trainers[-jobs] if jobs and len(trainers) >= jobs else ""
            scripts = slurm.write(run.plan, run.cfg.trainer_retries)
            if dry:
                for job in scripts:
                    print(shlex.join(submission.command(run.plan, job, {}, behind=behind)))
                trainers.append(f"<{run.name} trainer>")
            else:
                submission.submit(run.plan, scripts, behind=behind)
                trainers.append(submission.last_trainer_job(run.plan))
    if not dry:
        print(f"{base.name}: {AGAIN} with runs that have ended too early")
    return 0


def write_manifests(base: Plan, runs: Sequence[SweepRun]) -> int:
    """Write the manifest of every run that is not done, each into a file of its name."""
    require_apart(runs)
    for run in runs:
        run.plan.inference.engine = choose_engine(run.plan.inference.engine)
    require_submittable_runs(runs, plugins_here=False)
    write_files(base, runs)
    for run in runs:
        manifest = Path(f"{k8s.run_label(run.plan)}-k8s.yaml")
        k8s.write(run.plan, manifest)
        print(f"{run.name}: kubectl apply -f {manifest}")
    return 0
