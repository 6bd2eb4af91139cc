"""Runs of a sweep: a plan for each combination, its folder, its state, and its problems.

    <out>/sweep.yaml           the section, and the settings of each run
    <out>/<combination>/       a folder as of a single run, with the settings in run.yaml

Each run is known by the records in its folder, so a second start needs no further state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from atroposlib.errors import ConfigError
from atroposlib.run_status.ended import outcome_of
from atroposlib.settings.merge import Assignment, Settings, assignments_of
from atroposlib.settings.yaml_file import read_yaml
from example_trainer.launch import gpus, roles
from example_trainer.launch.check import problems_of, submission_problems
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.sweep.combinations import (
    SECTION,
    Combination,
    combinations_of,
)
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import end

SWEEP_FILE, RUN_FILE = "sweep.yaml", "run.yaml"
NOT_IN_A_NAME = re.compile(r"[^\w.-]+")
State = Literal["new", "stopped", "failed", "done"]
Reader = Callable[[Sequence[Assignment]], Plan]  # of settings that replace all earlier values


@dataclass(frozen=True)
class SweepRun:
    """A run of the sweep, ready to start."""

    combination: Combination
    plan: Plan
    cfg: TrainingConfig

    @property
    def name(self) -> str:
        return self.combination.name

    @property
    def file(self) -> Path:
        """The file of its settings, with which `atropos run` continues it alone."""
        return self.plan.directory / RUN_FILE

    @property
    def settings(self) -> dict[str, Any]:
        """Content of the file: what the files of the sweep and the combination set."""
        return {**self.plan.model_dump(mode="json", exclude_unset=True), SECTION: None}


@dataclass(frozen=True)
class SweepRecord:
    """The record in the folder of a run."""

    state: State
    problem: str = ""


def read_runs(base: Plan, read: Reader) -> list[SweepRun]:
    """The runs of ``base.sweep``.

    Raises:
        ConfigError: names every problem of the section and of the settings of the trainers.
    """
    runs: list[SweepRun] = []
    problems: list[tuple[str, str]] = []
    combinations = combinations_of(base.sweep, base.places)
    for combination in combinations:
        own = {
            SECTION: None,
            "name": NOT_IN_A_NAME.sub("-", f"{base.name}-{combination.name}"),
            "out": str(Path(base.out) / combination.name),
        }
        settings = [Assignment(key, own[key], f"the sweep: {key}") for key in own]
        try:
            plan = read([*combination.settings, *settings])
            runs.append(SweepRun(combination, plan, trainer_settings(plan)[1]))
        except ConfigError as error:
            problems.append((combination.name, str(error)))
    raise_problems(problems, len(combinations))
    return runs


def require_startable_runs(runs: Sequence[SweepRun], devices: Sequence[Sequence[str]]) -> None:
    """Refuse a sweep of which a run cannot start, on any of the ``devices`` of a run.

    Raises:
        ConfigError: names every problem, and the runs that have it.
    """
    problems = [(run.name, text) for run in runs for text in problems_of(run.plan)]
    for run in runs:
        for visible in devices:
            try:
                gpus.shared_out(run.plan, visible, run.cfg.device == "cpu")
            except ConfigError as error:
                problems.append((run.name, str(error)))
        if len(devices) > 1 and (run.plan.api.port or run.plan.inference.port):
            reason = "api.port and inference.port: runs side by side need free ports (0)"
            problems.append((run.name, reason))
    raise_problems(problems, len(runs))


def require_submittable_runs(runs: Sequence[SweepRun], plugins_here: bool) -> None:
    """Refuse a sweep on a cluster of which a run has a problem that is known before its submission.

    Raises:
        ConfigError: names every problem, and the runs that have it.
    """
    found = ((run.name, submission_problems(run.plan, plugins_here)) for run in runs)
    problems = [(name, text) for name, texts in found for text in texts]
    raise_problems(problems, len(runs))


def require_apart(runs: Sequence[SweepRun]) -> None:
    """Refuse runs that would write to the same place, or a password that would lie in their files.

    Raises:
        ConfigError: names the setting.
    """
    problems = []
    for run in runs:
        if roles.redacted_store(run.plan) != run.plan.store:
            reason = "store: a sweep writes it to files: name the password as ${VARIABLE}"
            problems.append((run.name, reason))
    for setting, place_of in (
        ("trainer.settings.save_path", lambda run: run.cfg.save_path),
        ("trainer.settings.log_dir", lambda run: run.cfg.log_dir),
        ("api.data, store", _place_of_groups),
    ):
        places = [place_of(run) for run in runs]
        problems += [
            (run.name, f"{setting}: {place} is of several runs: leave it to the launcher")
            for run, place in zip(runs, places)
            if places.count(place) > 1
        ]
    raise_problems(problems, len(runs))


def _place_of_groups(run: SweepRun) -> str:
    store = run.plan.store
    if store in roles.STORE_NAMES or store is None:
        return str(run.plan.directory / run.plan.api.data)
    is_folder = "://" not in store and "${" not in store
    return str(run.plan.directory / store) if is_folder else store


def raise_problems(problems: Iterable[tuple[str, str]], count: int) -> None:
    """Raise a ConfigError of all problems, each once, with the runs that have it."""
    names: dict[str, dict[str, None]] = {}
    for name, problem in problems:
        names.setdefault(problem, {})[name] = None
    sentences = []
    for problem, having in names.items():
        first, more = next(iter(having)), len(having) - 1
        which = f"{first}: " if not more else f"{first} and {more} more: "
        sentences.append(problem if len(having) == count else which + problem)
    if sentences:
        raise ConfigError("; ".join(sentences))


def record_of(run: SweepRun) -> SweepRecord:
    """The state of a run, by the trainer's own record of the end and the launcher's outcome."""
    outcome, step = outcome_of(run.plan.directory), end.ended_step(run.plan.end_record)
    wanted = run.cfg.training_steps
    if step is not None and (step >= wanted or (outcome and outcome.steps == wanted)):
        early = f"ended at step {step}: {outcome.problem}" if outcome and step < wanted else ""
        return SweepRecord("done", early)
    if outcome is not None and outcome.state == "failed":
        return SweepRecord("failed", outcome.problem)
    has_begun = outcome is not None or (run.plan.launched / "plan.json").exists()
    return SweepRecord("stopped" if has_begun else "new")


def write_files(base: Plan, runs: Sequence[SweepRun]) -> None:
    """Write the file of the sweep, and the settings of each of ``runs`` that is not done."""
    settings = {
        run.name: {entry.key: entry.value for entry in run.combination.settings}
        for run in runs
    }
    roles.write_yaml(base.directory / SWEEP_FILE, {SECTION: base.sweep, "runs": settings})
    for run in runs:
        if record_of(run).state != "done":
            roles.write_yaml(run.file, run.settings)


def changed_settings(run: SweepRun) -> list[str]:
    """Values that differ since the start of the run: ``trainer.lr 0.001, now 0.002``."""
    if not run.file.is_file():
        return []
    sides = read_yaml(run.file), Settings(json.loads(json.dumps(run.settings)))
    old, new = ({a.key: a.value for a in assignments_of(side)} for side in sides)
    return [
        f"{name} {old.get(name, 'not set')}, now {new.get(name, 'not set')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
