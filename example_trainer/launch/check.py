"""Checks of a whole plan before its first process starts; all problems are in a single error.

    settings, plug-ins, engine, model -> lengths and sizes -> disk, ports -> environments

Only an environment knows its group size. `atropos run check` and ``--dry-run`` start each once
with ``CHECK_ONLY``: the process reads its settings, checks them and ends without a connection. In a
run the environments check their settings at their start, while the servers load.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.processes import Children, Exit, ProcessSpec, RunFailed, log_tail
from atroposlib.settings.merge import Settings
from atroposlib.utils.command import plugins
from atroposlib.utils.command.startup import CHECK_ONLY, FILLS_BATCHES_OF
from atroposlib.utils.http.sockets import port_problem
from atroposlib.utils.io import DISK_RESERVE_BYTES, existing_folder, free_bytes
from atroposlib.utils.tokenizers.loading import require_model
from atroposlib.wire.messages import NEUTRAL_PENALTIES
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.servers import choose_engine, require_engine
from example_trainer.launch.teachers.section import TeacherSection
from example_trainer.settings.plugins import named_plugins

ENVIRONMENT_S = 120.0  # bound of an environment's check
# Beginning of an error about the file that an environment reads: its line and its key.
OF_ENVIRONMENT = re.compile(
    r"(?:--config )?\S+/environment-(\d+)\.yaml:(?:\d+: ([\w.-]*\w)| )"
)
# The line by which a command ends with an error.
REPORT = re.compile(r"(error|atropos-[a-z]+): ")
NOWHERE = roles.Endpoints("http://127.0.0.1:1", ())


def require_none(problems: Iterable[str]) -> None:
    """Refuse a plan with problems that are known before its start.

    Raises:
        ConfigError: names every problem.
    """
    if sentences := list(problems):
        raise ConfigError("; ".join(sentences))


def submission_problems(plan: Plan, plugins_here: bool) -> Iterator[str]:
    """Problems of the plan of a cluster that this machine can find, a sentence each.

    Args:
        plugins_here: the jobs import from the folder and the Python of this process. Where that
            Python has no torch, as on some login nodes, plug-ins are checked by the trainer alone.
    """
    _, cfg = trainer_settings(plan)
    yield from _settings_problems(plan, on_cluster=True)
    if plugins_here and find_spec("torch") is not None:
        try:
            _require_plugins(plan, named_plugins(cfg))
        except ConfigError as error:
            yield str(error)


def problems_of(plan: Plan) -> Iterator[str]:
    """Problems that prevent a start on this machine, a sentence each."""
    _, cfg = trainer_settings(plan)
    checks: tuple[Callable[[], object], ...] = (
        lambda: require_engine(choose_engine(plan.inference.engine), plan.inference.python),
        lambda: roles.store_of(plan),
        lambda: _require_plugins(plan, named_plugins(cfg)),
        lambda: require_model(cfg.model_name),
        *(partial(_require_teacher, own) for own in plan.teachers.values()),
        lambda: [
            roles.script_words(str(env.script)) for env in plan.environments if env.script
        ],
    )
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield str(error)
    yield from _settings_problems(plan)
    yield from _disk_problems(plan.directory)
    yield from _port_problems(plan)


def _settings_problems(plan: Plan, on_cluster: bool = False) -> Iterator[str]:
    """Problems that the settings show on any machine."""
    _, cfg = trainer_settings(plan)
    yield from roles.evaluation_problems(plan, on_cluster)
    yield from size_problems(plan, cfg.sequences_per_step, cfg.seq_len, cfg.microbatch_tokens)
    yield from _penalty_problems(plan)
    yield from roles.algorithm_problems(plan, cfg.algorithms)
    yield from roles.teaching_problems(plan)


def _require_teacher(own: TeacherSection) -> None:
    require_engine(choose_engine(own.engine), own.python)
    require_model(own.model)


def _require_plugins(plan: Plan, named: Iterable[tuple[plugins.Kind, str]]) -> None:
    """Check plug-ins as the trainer would import them, in a separate process.

    An import in the launcher would stay in its memory, torch included.
    """
    words = tuple(f"{kind.group}={name}" for kind, name in named)
    if words:
        _check_apart(words, tuple(sorted(plan.trainer.env.items())), Path.cwd())


@cache  # the runs of a sweep mostly name the same plug-ins
def _check_apart(
    words: tuple[str, ...], variables: tuple[tuple[str, str], ...], folder: Path
) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", plugins.__name__, *words],
            env={**os.environ, **dict(variables)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=plugins.CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{', '.join(words)}: no answer in {error.timeout:.0f} s") from error
    if done.returncode:
        raise ConfigError((done.stderr.strip() or f"{words} ended").splitlines()[-1])


def size_problems(plan: Plan, per_step: int, seq_len: int, pass_tokens: int) -> Iterator[str]:
    """Sizes and lengths in the plan that cannot work together.

    Args:
        per_step: sequences of a step.
        pass_tokens: of a forward pass.
    """
    sizes = []
    for number, wanted in enumerate(plan.environments):
        env: Mapping[str, Any] = wanted.config.get("env") or {}
        place = f"environments.{number}.config.env"
        if isinstance(size := env.get("group_size"), int) and size > 0:
            sizes.append(size)
        if size == 1 and env.get("ensure_scores_are_not_same") is True:
            yield (
                f"{place}.group_size 1: the scores of a group of one are equal, and"
                " ensure_scores_are_not_same drops such groups: raise group_size"
            )
        longest = env.get("max_token_length")
        if not isinstance(longest, int):
            continue
        if longest > seq_len:
            yield (
                f"{place}.max_token_length {longest} is more than the {seq_len} tokens that"
                " the trainer takes: raise trainer.settings.seq_len, or lower it"
            )
        elif longest > pass_tokens:
            yield (
                f"{place}.max_token_length {longest} is more than the {pass_tokens}"
                " tokens of a forward pass: raise trainer.settings.max_tokens_per_microbatch, or"
                " lower it"
            )
    if len(sizes) == len(plan.environments) and not is_sum(per_step, sizes):
        listed = ", ".join(map(str, sorted(set(sizes))))
        yield (
            f"{per_step} sequences of a step (trainer.settings.batch_size x"
            f" gradient_accumulation_steps) are no sum of groups of {listed}: choose a multiple"
        )


def _penalty_problems(plan: Plan) -> Iterator[str]:
    """Penalties of sampling that the local server would refuse at the first rollout."""
    if choose_engine(plan.inference.engine) != "local":
        return
    for number, wanted in enumerate(plan.environments):
        for section in ("sampling", "eval_sampling"):
            sampling = (wanted.config.get("openai") or {}).get(section) or {}
            for name, neutral in NEUTRAL_PENALTIES.items():
                if sampling.get(name) not in (None, neutral):
                    yield (
                        f"environments.{number}.config.openai.{section}.{name}: the local server"
                        " samples without penalties: take inference.engine=vllm or sglang, or"
                        " leave the penalty out"
                    )


def is_sum(total: int, sizes: Iterable[int]) -> bool:
    """Whether groups of these sizes, of each any number, have ``total`` sequences together."""
    reachable = 1  # bit n: n sequences can be made
    for size in set(sizes):
        step = size
        while step <= total:  # 1, 2, 4 ... groups: any number of them
            reachable |= reachable << step
            step *= 2
    return bool(reachable >> total & 1)


def _disk_problems(folder: Path) -> Iterator[str]:
    free = free_bytes(folder)
    if free < 2 * DISK_RESERVE_BYTES:
        yield (
            f"{existing_folder(folder)} has {free / 1e6:.0f} MB free: the store keeps"
            f" {DISK_RESERVE_BYTES / 1e6:.0f} MB in reserve and needs as much for groups; free"
            " space, or name another folder by out=FOLDER"
        )


def _port_problems(plan: Plan) -> Iterator[str]:
    first = plan.inference.port
    ports = {"api.port": plan.api.port}
    for index in range(plan.inference.count if first else 0):
        ports[f"inference.port {first} + {index}"] = first + index
    ports |= {f"teachers.{name}.port": own.port for name, own in plan.teachers.items()}
    for name, port in ports.items():
        if reason := port_problem(port):
            yield f"{name}: port {port} of 127.0.0.1 is not free ({reason})"


def environment_variables(plan: Plan, per_step: int) -> dict[str, str]:
    """Variables of an environment's process: the batch that it has to fill alone, if so."""
    alone = len(plan.environments) == 1
    return {FILLS_BATCHES_OF: str(per_step)} if alone else {}


def check_environments(plan: Plan) -> Iterator[str]:
    """Start each environment for its own check; a line about each that passed.

    Raises:
        ConfigError: the last line of an environment that refuses its settings.
    """
    _, cfg = trainer_settings(plan)
    filled = environment_variables(plan, cfg.sequences_per_step)
    with Children(plan.launched) as children:
        for number, wanted in enumerate(plan.environments):
            if wanted.command is not None:
                continue  # a program with settings of another kind
            name = roles.environment_name(plan, number)
            command = roles.environment(plan, cfg, sys.executable, number, NOWHERE)
            env = {**filled, **command.env, CHECK_ONLY: "1"}
            spec = ProcessSpec(f"check-{number}", command.argv, env, Path.cwd())
            try:
                ended = children.run_to_end(spec, bound_s=ENVIRONMENT_S)
            except RunFailed as failure:
                raise ConfigError(f"environments.{number} ({name}): {failure}") from failure
            log = plan.launched / f"{spec.name}.log"
            if ended != Exit(0):
                problem = invalid_settings(log, plan.places)
                raise ConfigError(f"environments.{number} ({name}): {problem}")
            log.unlink()
            yield f"environment {name}: its settings are sound"


def invalid_settings(log: Path, places: Mapping[str, str]) -> ConfigError:
    """Return the error at the end of the log, under the places of the plan's settings."""
    written = Settings(places=dict(places))

    def place(match: re.Match[str]) -> str:
        section = f"environments.{match[1]}.config"
        return written.place(f"{section}.{match[2]}") if match[2] else f"{section}: "

    # Behind the error of a rank stand the lines of torchrun.
    lines = log_tail(log, 50).splitlines() or [""]
    reports = [line for line in lines if REPORT.match(line)]
    text = OF_ENVIRONMENT.sub(place, (reports or lines)[-1].removeprefix("error: "))
    return ConfigError(f"{text} (log: {log})")
