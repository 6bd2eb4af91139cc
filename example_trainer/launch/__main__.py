"""Command line of atropos-launch: start a whole run from a YAML file.

    atropos-launch local run.yaml lr=1e-5 inference.count=2
    atropos-launch slurm --config run.yaml --dry-run
    atropos-launch k8s --config run.yaml k8s.image=... k8s.volume_claim=...
    atropos-launch ray --config run.yaml --out /shared/run
    atropos-launch --config areal.yaml --env my_environment.py     AReaL's file, here
    atropos run diff runs/a runs/b                                  two runs compared

key=value sets a key of the file; a key unknown to the launcher is passed to the trainer. A file with
a section ``sweep`` is a run for each of its combinations.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Assignment
from atroposlib.utils.command import logs
from atroposlib.utils.command.folder_lock import FolderLock
from atroposlib.utils.command.parser import API_TOKEN, GPUS, HUB, CommandParser, whole
from example_trainer.launch.clusters import ROLES
from example_trainer.launch.local import ANOTHER_FOLDER, check_local, exit_status, run_local
from example_trainer.launch.plan import Plan, read_plan, trainer_settings
from example_trainer.launch.servers import choose_engine
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.files import parse_override

PROG = "atropos-launch"
logger = logging.getLogger(__name__)
NO_LIVE = "one line per step, no live view"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0: the trainer is done (or jobs are submitted); 1: it failed; 2: not started."""
    args = parse(argv)
    logs.configure(PROG, args.log_format, args.log_level)
    # The processes of the run log as the launcher does.
    os.environ["ATROPOS_LOG_LEVEL"] = args.log_level
    os.environ["ATROPOS_LOG_FORMAT"] = args.log_format
    return exit_status(PROG, lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    if args.what == "node":
        from example_trainer.launch import node

        if args.count > 1:
            return node.run_servers(node.load_plan(args.plan), args.index, args.count)
        plan, role = node.load_plan(args.plan), (args.role, args.index, args.meet)
        if args.until_recorded:
            return node.recorded_status(plan, node.run_role(plan, *role))
        if node.is_child(args.role, os.environ):
            return node.run_role(plan, *role)
        node.exec_role(plan, *role)
    plan = plan_of(args)
    try:
        if plan.sweep is not None:
            return _sweep(plan, args)
        if args.what == "k8s":
            return _k8s(plan, args.manifest)
        if args.what == "ray":
            from example_trainer.launch.ray_cluster import run_ray

            return run_ray(plan, _for_cluster(plan).trainer_retries)
        if args.what == "check" or (args.what == "local" and args.dry_run):
            return check_local(plan)
        if args.what == "local":
            return run_local(plan, args.live, args.open)
        return _slurm(plan, args.dry_run)
    except ConfigError as error:
        text, files = str(error), ", ".join(args.config)
        has_place = any(f"{place}:" in text for place in (*args.config, "command line"))
        raise ConfigError(text if has_place else f"{files}: {text}") from error


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = CommandParser(
        prog=PROG,
        description=__doc__,
        epilog="The keys of the file: CONFIG.md",
        variables=(API_TOKEN, HUB, GPUS),
    )
    what = parser.add_subparsers(
        dest="what", required=True, metavar="local|check|slurm|k8s|ray"
    )
    local = what.add_parser("local", help="as child processes of this machine")
    checked = what.add_parser(
        "check", help="check all of it, print the commands, start nothing"
    )
    slurm = what.add_parser("slurm", help="as jobs: writes sbatch scripts and submits them")
    k8s = what.add_parser("k8s", help="as a JobSet of Kubernetes: writes its manifest")
    ray = what.add_parser(
        "ray", help="as actors of a Ray cluster, with this process as their owner"
    )
    for module in (local, checked, slurm, k8s, ray):
        module.add_argument("--config", action="append", default=[], metavar="FILE")
        module.add_argument("--env", help="environment of a file of AReaL: a file, or a name")
        module.add_argument("--out", help="logs, queue, checkpoints (as out=)")
        module.add_argument("--nproc", help="trainer ranks per node (trainer.nproc=)")
        module.add_argument("overrides", nargs="*", metavar="FILE|key=value")
    local.add_argument("--no-live", dest="live", action="store_false", help=NO_LIVE)
    local.add_argument(
        "--open", action="store_true", help="open the page of the run in a browser"
    )
    about = "check all of it, print the commands, start nothing"
    local.add_argument("--dry-run", action="store_true", help=about)
    for module in (local, checked, slurm, ray):
        about = "runs of a sweep at a time (default: 1; slurm: as SLURM decides)"
        module.add_argument("--jobs", type=whole(1), metavar="N", help=about)
    about = "leave failed runs of a sweep alone (default: each starts once more)"
    for module in (local, checked, ray):
        module.add_argument("--skip-failed", action="store_true", help=about)
    slurm.add_argument("--dry-run", action="store_true", help="write scripts, submit nothing")
    k8s.add_argument(
        "--manifest",
        metavar="FILE",
        help="to write (default: NAME-k8s.yaml, NAME as of the JobSet)",
    )
    node = what.add_parser("node", help="what a job of the cluster runs")
    node.add_argument("--plan", required=True)
    node.add_argument("--role", required=True, choices=ROLES)
    node.add_argument("--index", type=int, default=0)
    node.add_argument("--count", type=int, default=1, help="servers, from index on")
    about = "of the trainer: fail unless it records its end"
    node.add_argument("--until-recorded", action="store_true", help=about)
    node.add_argument("--meet", help="host:port where the trainer's nodes meet")
    words = list(sys.argv[1:] if argv is None else argv)
    here = words[:1] and words[0].partition("=")[0] in ("--config", "--env")
    return _with_bare_words(parser, ["local", *words] if here else words)


def _with_bare_words(parser: CommandParser, words: list[str]) -> argparse.Namespace:
    """Parse; files and overrides may stand between flags, which argparse does not allow."""
    args, later = parser.parse_known_args(words)
    if args.what == "node" or any(word.startswith("-") for word in later):
        return parser.parse_args(words)
    bare = [*args.overrides, *later]
    files = [word for word in bare if word.endswith((".yaml", ".yml")) and "=" not in word]
    args.config = [*args.config, *files]
    args.overrides = [word for word in bare if word not in files]
    return parser.with_log_settings(args)


def plan_of(args: argparse.Namespace, more: Sequence[Assignment] = ()) -> Plan:
    """Read the plan of the command line; ``more`` settings come last."""
    if not args.config:
        raise ConfigError("a FILE is required (or --config FILE)")
    overrides = [parse_override(word) for word in args.overrides]
    for key, value, place in (
        ("out", args.out, "--out"),
        ("trainer.nproc", args.nproc, "--nproc"),
    ):
        overrides += [] if value is None else [Assignment(key, value, place)]
    overrides += more
    return read_plan(
        args.config, overrides, args.env, on_cluster=args.what not in ("local", "check")
    )


def _sweep(base: Plan, args: argparse.Namespace) -> int:
    from example_trainer.launch.sweep import commands, queue
    from example_trainer.launch.sweep.runs import read_runs

    def read(settings: Sequence[Assignment]) -> Plan:
        return plan_of(args, settings)

    runs = read_runs(base, read)
    swept = {setting.key for run in runs for setting in run.combination.settings}
    for word in args.overrides:
        if (override := parse_override(word)).key in swept:
            raise ConfigError(
                f"{override.place} is a setting of the sweep: take out one of both"
            )
    if args.what == "k8s":
        if args.manifest:
            raise ConfigError("--manifest names one file, and each run of a sweep has its own")
        return commands.write_manifests(base, runs)
    if args.what == "slurm":
        return commands.submit_sweep(base, runs, args.jobs or 0, args.dry_run)
    options = queue.QueueOptions(
        what="ray" if args.what == "ray" else "local",
        jobs=args.jobs or 1,
        skip_failed=args.skip_failed,
        live=getattr(args, "live", False),
    )
    if args.what == "check" or getattr(args, "dry_run", False):
        return commands.check_sweep(base, runs, options)
    return queue.run_sweep(base, runs, options)


def _for_cluster(plan: Plan, plugins_here: bool = True) -> TrainingConfig:
    """Resolve the engine here, so that all nodes use the same, check the plan and log the notes."""
    from example_trainer.launch.check import require_none, submission_problems

    plan.inference.engine = choose_engine(plan.inference.engine)
    require_none(submission_problems(plan, plugins_here))
    settings, cfg = trainer_settings(plan)
    for note in settings.notes:
        logger.info(f"note: {note}")
    return cfg


def _k8s(plan: Plan, file: str | None) -> int:
    from example_trainer.launch import k8s

    _for_cluster(plan, plugins_here=False)
    manifest = Path(file or f"{k8s.run_label(plan)}-k8s.yaml")
    k8s.write(plan, manifest)
    print(f"start: kubectl apply -f {manifest}; end: kubectl delete -f {manifest}")
    return 0


def _slurm(plan: Plan, dry: bool) -> int:
    from example_trainer.launch import slurm, submission

    cfg = _for_cluster(plan)
    with FolderLock(plan.directory, ANOTHER_FOLDER):
        submission.require_ended(plan)
        jobs = slurm.write(plan, cfg.trainer_retries)
        if dry:
            for job in jobs:
                print(shlex.join(submission.command(plan, job, {})))
        else:
            submission.submit(plan, jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
