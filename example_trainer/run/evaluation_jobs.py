"""Programs of an evaluation: their command lines, and a bounded run of all at once.

    settings + addresses of servers -> Job -> process group -> metrics.json -> Measured

Every process leads a process group, which ends with the evaluation, also where the trainer is
killed (``atroposlib.processes``).
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.processes import Children, Exit, ProcessSpec, RunFailed
from atroposlib.processes.children import log_tail
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.utils.io import write_whole
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.evaluation import (
    PARTIAL_RESULTS,
    RESULTS,
    EvaluationOutcome,
    Measured,
    read_partial,
    read_result,
)
from example_trainer.settings.config import EvaluatorSettings
from example_trainer.settings.section import fill_words

POLL_S = 0.1
GRACE_S = 5.0  # between SIGTERM and SIGKILL
COMMAND_LOG = "output"  # name of the log of ``eval_command``
SETTINGS = "settings.yaml"
CONFIG_FLAG = "--config"
NAMED = "name="
# Engine -> type of the server in the settings of an environment.
SERVER_TYPES = {"local": "vllm", "vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True)
class Job:
    """A program of an evaluation; its results go below ``out``."""

    name: str  # its environment; empty: ``eval_command``
    argv: tuple[str, ...]
    out: Path

    @property
    def log_name(self) -> str:
        return self.name or COMMAND_LOG


def jobs_of(
    cfg: EvaluatorSettings,
    state: TrainerState,
    version: int,
    urls: Sequence[str],
    out: Path,
    engine: str = "local",
) -> list[Job]:
    """The programs of an evaluation; writes the settings of its environments.

    Raises:
        ConfigError: the settings of an environment cannot be read.
        OSError: a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    jobs = []
    if cfg.eval_command is not None:
        words = fill_words(
            cfg.eval_command,
            version=version,
            step=state.step,
            url=urls[0] if urls else "",
            out=out,
        )
        jobs.append(Job("", tuple(words), out))
    servers = {
        "model_name": cfg.model_name,
        "server_type": SERVER_TYPES.get(engine, "vllm"),
        "api_key": cfg.server_token or "none",
    }
    for name, words in environments_of(cfg.eval_environments).items():
        folder = out / name
        folder.mkdir(exist_ok=True)
        script, *flags = words
        own, flags = without_config(flags)
        settings = read_yaml(own).values if own else {}
        write_whole(
            folder / SETTINGS,
            json.dumps(with_servers(settings, servers, urls), indent=2) + "\n",
        )
        start = (sys.executable, "-m", "atroposlib.cli.atropos", "eval", script)
        kept = ("--env.data_dir_to_save_evals", str(folder))
        argv = (*start, CONFIG_FLAG, str(folder / SETTINGS), *flags, *kept)
        jobs.append(Job(name, argv, folder))
    return jobs


def environments_of(entries: Sequence[str]) -> dict[str, list[str]]:
    """Name of each environment, that of its file, and the words after ``atropos eval``.

    Example: "sums.py --env.eval_items 50" is {"sums": ["sums.py", "--env.eval_items", "50"]}. A word
    ``name=sums`` before the script names it.

    Raises:
        ConfigError: an entry cannot be split into words, or two have the same name.
    """
    environments: dict[str, list[str]] = {}
    for entry in entries:
        try:
            words = shlex.split(entry)
        except ValueError as error:
            raise ConfigError(f"eval_environments: {entry!r}: {error}") from error
        named = words[:1] and words[0].startswith(NAMED)
        name = words.pop(0).removeprefix(NAMED) if named else None
        if not words:
            raise ConfigError(f"eval_environments: {entry!r} names no environment")
        name = name or Path(words[0].partition(":")[0]).stem
        if Path(name).name != name or name.startswith("."):
            raise ConfigError(f"eval_environments: {name!r} is no name of a folder")
        if name in environments:
            raise ConfigError(
                f"eval_environments: two are named {name}; begin one with {NAMED}ANOTHER"
            )
        environments[name] = words
    return environments


def without_config(flags: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file of ``--config``, if any, and the flags without it."""
    kept = list(flags)
    for place, word in enumerate(kept):
        if word == CONFIG_FLAG and place + 1 < len(kept):
            path = kept[place + 1]
            del kept[place : place + 2]
            return path, kept
        if word.startswith(f"{CONFIG_FLAG}="):
            del kept[place]
            return word.partition("=")[2], kept
    return None, kept


def with_servers(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], urls: Sequence[str]
) -> dict[str, Any]:
    """Settings of an environment with the servers of the evaluation; its own values win."""
    own = settings.get("openai") or {}
    if isinstance(own, Sequence):
        own = own[0] if own else {}
    shared = {**defaults, **own}
    servers = [{**shared, "base_url": f"{url}/v1"} for url in urls]
    return {**settings, "openai": servers[0] if len(servers) == 1 else servers}


def run_jobs(
    jobs: Sequence[Job],
    logs: Path,
    until: float,
    bound_s: float,
    interrupted: Callable[[], str | None],
) -> list[Measured]:
    """Run all programs at once; the result of each, partial where the time was over.

    Args:
        until: ``time.monotonic()`` at which all are ended; ``bound_s`` is for the text.
        interrupted: called meanwhile; a reason ends the programs, an exception too.
    """
    problems: dict[str, str] = {}
    exits: dict[str, Exit | None] = {}
    for job in jobs:
        (job.out / RESULTS).unlink(missing_ok=True)  # left by an earlier try
        (job.out / PARTIAL_RESULTS).unlink(missing_ok=True)
    with Children(logs) as children:
        for job in jobs:
            spec = ProcessSpec(job.log_name, job.argv, {"PYTHONUNBUFFERED": "1"}, Path.cwd())
            try:
                children.start(spec)
            except RunFailed as error:
                problems[job.log_name] = error.line
        started = [job.log_name for job in jobs if job.log_name not in problems]
        why = None
        while why is None and any(children[name].exit() is None for name in started):
            why = interrupted()
            if why is None and time.monotonic() > until:
                why = f"not done after {bound_s:.0f} s"
            time.sleep(POLL_S)
        exits = {name: children[name].exit() for name in started}
        children.end(started, GRACE_S)
    return [
        job_result(job, exits.get(job.log_name), problems.get(job.log_name), why, logs)
        for job in jobs
    ]


def job_result(
    job: Job, ended: Exit | None, problem: str | None, why: str | None, logs: Path
) -> Measured:
    """The result of a program that exited, or was ended because of ``why``."""
    if problem is not None:
        return Measured(job.name, EvaluationOutcome.FAILED, problem=problem)
    if ended is None:
        return read_partial(job.name, job.out / PARTIAL_RESULTS, why or "it was ended")
    if ended != Exit(0):
        tail = log_tail(logs / f"{job.log_name}.log")
        return Measured(job.name, EvaluationOutcome.FAILED, problem=f"{ended}\n{tail}".strip())
    return read_result(job.name, job.out / RESULTS)
