"""A run of AReaL's file: its options, by the place of each in a plan.

    assignments -> options -> a look at environment and data -> sections of a plan

    PLACES    an option is a setting
    GROUPS    several options, or an option and a look at the run, make settings

``env.*`` and ``openai.*`` are settings of the environment, and of its view of each server. What
stands in neither table is the trainer's, which takes it or notes it (``settings.areal.names``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Assignment, as_tree
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.datasets import load_rows
from example_trainer.launch.areal import values
from example_trainer.launch.areal.values import Places, RunContext
from example_trainer.settings.areal.defaults import (
    MISSING,
    is_supervised,
    note_of,
)
from example_trainer.settings.areal.names import (
    ENVIRONMENTS,
    meaning_of as meaning_of_name,
    same,
)
from example_trainer.settings.areal.other_commands import sentence_of_evaluation, trains
from example_trainer.settings.files import (
    belongs_elsewhere,
    is_known,
    listed_keys,
    resolve_references,
)
from example_trainer.settings.unknown import sentence_of_unknown, unknown_options

Group = Callable[[Mapping[str, Any], RunContext], Places]
ENV, OPENAI, SETTINGS = "env.", "openai.", "trainer.settings."
DATA = "train_dataset.path"
HEADS = {"actor", "model", "gconfig", "rollout"}
IMPORT_TIMEOUT_S = 300.0
SAMPLING = {  # AReaL's name -> the servers'
    "top_p": "top_p",
    "top_k": "top_k",
    "min_new_tokens": "min_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
PENALTIES = {"frequency_penalty", "presence_penalty"}
PLACES: dict[str, str] = {
    "seed": "env.seed",
    "tokenizer_path": "env.tokenizer_name",
    "gconfig.n_samples": "env.group_size",
    "eval_gconfig.n_samples": "env.eval_samples",
    "eval_gconfig.max_new_tokens": "openai.eval_sampling.max_tokens",
    **{f"gconfig.{name}": f"openai.sampling.{ours}" for name, ours in SAMPLING.items()},
    **{f"eval_gconfig.{name}": f"openai.eval_sampling.{o}" for name, o in SAMPLING.items()},
    "rollout.max_concurrent_rollouts": "env.max_num_workers",
    "rollout.request_timeout": "openai.timeout",
    "rollout.setup_timeout": "inference.ready_within_s",
    "stats_logger.wandb.mode": "env.use_wandb",
    "launcher.inference_server_env_vars": "inference.env",
    "launcher.trainer_env_vars": "trainer.env",
    "launcher.slurm.srun_additional_args": "slurm.srun",
    "launcher.slurm.additional_bash_cmds": "slurm.setup",
}
CONVERTED: dict[str, Callable[[Any], Any]] = {  # keys: the last part of the name
    "top_k": lambda k: None if k >= values.UNBOUNDED_TOP_K else k,
    "request_timeout": int,
    "mode": lambda mode: mode not in (False, "disabled"),
    "inference_server_env_vars": values.variables,
    "trainer_env_vars": values.variables,
    "srun_additional_args": values.words,
}
NEUTRAL = {"top_p": 1.0, "min_new_tokens": 0} | dict.fromkeys(PENALTIES, 0.0)  # as left out
GROUPS: dict[Group, str] = {
    # environment
    values.temperatures: "gconfig.temperature gconfig.greedy eval_gconfig.temperature"
    " eval_gconfig.greedy",
    values.lengths: "gconfig.max_new_tokens gconfig.max_tokens train_dataset.max_length",
    values.dataset: "train_dataset.path train_dataset.shuffle valid_dataset.path",
    values.evaluations: "evaluator.freq_steps evaluator.freq_epochs evaluator.freq_secs"
    " evaluator.eval_before_train",
    # trainer
    values.epochs: "total_train_epochs total_train_steps train_dataset.batch_size",
    # launcher
    values.directories: "experiment_name trial_name cluster.fileroot saver.fileroot"
    " stats_logger.fileroot",
    values.allocate: "allocation_mode actor.backend rollout.backend cluster.n_nodes"
    " cluster.n_gpus_per_node",
    values.resources: "launcher.inference_server_cpus_per_gpu launcher.trainer_cpus_per_gpu"
    " launcher.inference_server_mem_per_gpu launcher.trainer_mem_per_gpu",
    values.container: "launcher.slurm.container_type launcher.slurm.container_mounts"
    " launcher.slurm.trainer_image launcher.slurm.inference_server_image",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}
TRAINER_TOO = frozenset(
    "seed gconfig.n_samples stats_logger.wandb.mode total_train_steps train_dataset.batch_size"
    " experiment_name trial_name evaluator.freq_steps evaluator.freq_epochs evaluator.freq_secs"
    " evaluator.eval_before_train".split()
)


def group_of(key: str) -> Group | None:
    is_servers = key.startswith(("sglang.", "vllm."))
    return values.server_options if is_servers else GROUP_OF.get(key)


def is_launched(key: str) -> bool:
    """Whether an option is not only the trainer's."""
    return key in PLACES or group_of(key) is not None


def is_areal(tree: Mapping[str, Any]) -> bool:
    """Whether a YAML file is in AReaL's form: it has a section of AReaL's, and none of a plan's."""
    heads = {str(key).partition(".")[0] for key in tree}
    return bool(heads & HEADS) and not heads & {"environments", "trainer"}


def read_areal(
    assignments: Sequence[Assignment],
    environment: str | None,
    choose_engine: Callable[[Any], str],
    on_cluster: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return sections of a plan, and what has no effect in it.

    Args:
        assignments: ``env.<field>`` sets a field of the environment that AReaL has no name for.
        environment: file or name, in place of the data set's usual environment.
        choose_engine: from that of the allocation, or "auto".

    Raises:
        ConfigError: an option is unknown or has no counterpart; names the replacement.
        DatasetUnavailable: the file of the data cannot be read.
    """
    written = {assignment.key: assignment.value for assignment in assignments}
    own = {key: value for key, value in written.items() if key.startswith(ENV)}
    # A file of another command is refused before any unknown option.
    if not trains(written):
        path = written.get("valid_dataset.path") or written.get(DATA)
        known = values.known_dataset(path)
        name = environment or (known and known.environment)
        raise ConfigError(sentence_of_evaluation(written, name))
    is_supervised(written)
    given = [assignment for assignment in assignments if assignment.key not in own]
    unknown = unknown_options(given)
    if unknown and environment is None:
        raise ConfigError(sentence_of_unknown(unknown, None))
    resolved = given_options(given)
    of_workflow = {key: resolved[key] for key in unknown if key in resolved}
    taken_out = {assignment.key for assignment in given if not is_known(assignment)}
    options = {key: value for key, value in resolved.items() if key not in taken_out}
    run = look(options, values.environment_of(options, environment), on_cluster)
    run.engine = choose_engine(values.allocation_of(options).engine or "auto")
    handed_over = handed_to_environment(of_workflow, run)
    tree = translate_options(values.with_defaults(options), run)
    config = tree["environments"][0]["config"]
    own = {key.removeprefix(ENV): value for key, value in own.items()}
    config["env"] |= as_tree(handed_over) | as_tree(own)
    notes = note_of(values.defaults_of(options), options)
    return tree, notes + [f"{listed_keys(keys)}: {why}" for why, keys in run.notes.items()]


def handed_to_environment(unknown: Mapping[str, Any], run: RunContext) -> dict[str, Any]:
    """The options of a workflow that are settings of the environment by the same name; noted.

    Raises ConfigError: the environment lacks a setting; names every key without its setting.
    """
    left = {k: v for k, v in unknown.items() if k.partition(".")[0] not in run.fields}
    if left:
        raise ConfigError(sentence_of_unknown(left, run.environment, run.fields))
    for key in unknown:
        run.note(key, f"AReaL has no such option; the environment {run.environment} reads it")
    return dict(unknown)


def look(given: Mapping[str, Any], environment: str, on_cluster: bool) -> RunContext:
    """Read the names of the environment's settings, and count the rows of local data."""
    path = given.get(DATA)
    is_local = path is not None and Path(path).exists()
    known = values.known_dataset(path)
    rows = known.rows if known and known.hub == path else None
    return RunContext(
        environment=environment,
        fields=fields_of(environment),
        on_cluster=on_cluster,
        data_is_local=is_local,
        rows=len(load_rows(str(path), "train", path=path, option=DATA)) if is_local else rows,
    )


def fields_of(environment: str) -> frozenset[str]:
    """Names of the settings of an environment, which another process imports."""
    code = "import sys; from atroposlib.cli.env_files import *; print_settings(sys.argv[1])"
    words = (sys.executable, "-c", code, environment)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"--env {environment}: not imported in {error.timeout:.0f} s"
        ) from error
    if done.returncode != 0:
        raise ConfigError(f"--env {environment}: {done.stderr.strip()}")
    return frozenset(json.loads(done.stdout.splitlines()[-1])["fields"])


def given_options(assignments: Sequence[Assignment]) -> dict[str, Any]:
    """The options by key without references; the last of each counts, and ``???`` is none.

    Raises ConfigError: a reference is undefined or circular.
    """

    def stays(assignment: Assignment) -> bool:
        launched = is_launched(assignment.key) or assignment.key.startswith("model.")
        return is_known(assignment) and belongs_elsewhere(assignment) and not launched

    options: dict[str, Any] = {}
    for assignment in resolve_references(assignments, stays):
        options.pop(assignment.key, None)  # keeps the order of the last assignments
        options[assignment.key] = assignment.value
    return {key: value for key, value in options.items() if value != MISSING}


def translate_options(options: Mapping[str, Any], run: RunContext) -> dict[str, Any]:
    """Return the sections of a plan; notes are added to ``run``.

    Raises ConfigError: a value has no counterpart here; names the option.
    """
    places: Places = {"env.use_wandb": False, "env.total_steps": -1, "env.steps_per_eval": 0}
    done = set()
    for key, value in options.items():
        group = group_of(key)
        try:
            if group is not None and group not in done:
                done.add(group)
                places |= group(options, run)
            elif key in PLACES:
                places |= _places_of(key, value, run)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{key}: {error}") from error
    for key, value in options.items():
        if not is_launched(key) and meaning_of_name(key) is ENVIRONMENTS:
            run.note(key, _reason_unread(key))
        elif not is_launched(key) or (key in TRAINER_TOO and value is not None):
            places[SETTINGS + key] = value
    return sections(places, run.environment)


def _reason_unread(key: str) -> str:
    """The reason why no process reads an option of servers or environments."""
    if key.startswith("valid_dataset."):
        return values.HELD_OUT
    return f"nothing here reads it{did_you_mean(key, [*PLACES, *GROUP_OF])}"


def _places_of(key: str, value: Any, run: RunContext) -> Places:
    name, place = key.rpartition(".")[2], PLACES[key]
    if value in (None, "", [], NEUTRAL.get(name, NEUTRAL.get(key))):
        return {}
    if name in PENALTIES and run.engine == "local":
        raise ConfigError(
            f"the local server samples without penalties: take vllm or sglang, or leave it out"
            f" ({key}=null)"
        )
    wanted = CONVERTED.get(name, same)(value)
    if place.startswith(ENV):
        return run.of_env(key, wanted, place.removeprefix(ENV))
    return {} if wanted is None else {place: wanted}


def sections(places: Places, environment: str) -> dict[str, Any]:
    """The tree of a plan with a single environment.

    Example: {"env.seed": 1, "inference.count": 2} is {"environments": [{"script": ...,
    "config": {"env": {"seed": 1}}}], "inference": {"count": 2}}.
    """
    config: dict[str, Any] = {}
    tree: dict[str, Any] = {"environments": [{"script": environment, "config": config}]}
    for place, value in places.items():
        *path, last = place.split(".")
        if place.startswith(SETTINGS):  # the trainer reads dotted keys
            path, last = ["trainer", "settings"], place.removeprefix(SETTINGS)
        below = config if place.startswith((ENV, OPENAI)) else tree
        for name in path:
            below = below.setdefault(name, {})
        below[last] = value
    return tree
