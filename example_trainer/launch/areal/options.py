"""AReaL's options for environment, servers and launcher: one row each, translated to a plan.

    Passed      one setting of the plan
    Together    several options, or one and the run, make settings of the plan

The places of values are keys of the plan, but for ``env.*`` and ``openai.*``: settings of the
environment, and of its view of each server. What has no row is the trainer's, which takes it or
notes it (``example_trainer.settings.areal.names``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.launch.areal import values
from example_trainer.launch.areal.values import Places, RunContext
from example_trainer.settings.areal.names import Ignored, same
from example_trainer.settings.files import Assignment, meaning_of, resolved

ENV, OPENAI, SETTINGS = "env.", "openai.", "trainer.settings."
MISSING = "???"  # a value that AReaL's reference leaves to the user
OFF = (None, False, "disabled")


@dataclass(frozen=True)
class Passed:
    """``neutral`` values mean the same as leaving the option out."""

    place: str
    convert: Callable[[Any], Any] = same
    neutral: tuple[Any, ...] = (None, "", [])
    trainer_too: bool = False


@dataclass(frozen=True)
class Together:
    function: Callable[[Mapping[str, Any], RunContext], Places]
    to: str  # the process it is for
    trainer_too: bool = False


def _sampling(section: str, place: str) -> dict[str, Passed]:
    return {
        f"{section}.top_p": Passed(f"{place}.top_p", neutral=(None, 1.0)),
        f"{section}.top_k": Passed(f"{place}.top_k", values.top_k),
        f"{section}.min_new_tokens": Passed(f"{place}.min_tokens", neutral=(None, 0)),
        f"{section}.stop": Passed(f"{place}.stop"),
        f"{section}.stop_token_ids": Passed(f"{place}.stop_token_ids"),
        f"{section}.frequency_penalty": Passed(
            f"{place}.frequency_penalty", neutral=(None, 0.0)
        ),
    }


def _together(
    to: str, function: Any, *names: str, trainer: bool = False
) -> dict[str, Together]:
    return dict.fromkeys(names, Together(function, to, trainer))


ROWS: dict[str, Passed | Together] = {
    "seed": Passed("env.seed", trainer_too=True),
    "tokenizer_path": Passed("env.tokenizer_name"),
    "gconfig.n_samples": Passed("env.group_size", trainer_too=True),
    **_sampling("gconfig", "openai.sampling"),
    **_sampling("eval_gconfig", "openai.eval_sampling"),
    "eval_gconfig.max_new_tokens": Passed("openai.eval_sampling.max_tokens"),
    "eval_gconfig.n_samples": Passed("env.eval_samples", neutral=(None, 1)),
    **_together(
        "environment",
        values.temperatures,
        *("gconfig.temperature", "gconfig.greedy"),
        *("eval_gconfig.temperature", "eval_gconfig.greedy"),
    ),
    **_together(
        "environment",
        values.lengths,
        *("gconfig.max_new_tokens", "gconfig.max_tokens", "train_dataset.max_length"),
    ),
    **_together(
        "environment",
        values.dataset,
        *("train_dataset.path", "train_dataset.type", "train_dataset.shuffle"),
        *("valid_dataset.path", "valid_dataset.type"),
    ),
    **_together("trainer", values.epochs, "total_train_epochs"),
    **_together(
        "trainer", values.epochs, "train_dataset.batch_size", "total_train_steps", trainer=True
    ),
    **_together(
        "environment",
        values.evaluations,
        *("evaluator.freq_steps", "evaluator.freq_epochs", "evaluator.freq_secs"),
        "evaluator.eval_before_train",
        trainer=True,
    ),
    "rollout.max_concurrent_rollouts": Passed("env.max_num_workers"),
    "rollout.request_timeout": Passed("openai.timeout", int),
    "rollout.setup_timeout": Passed("inference.ready_within_s"),
    "stats_logger.wandb.mode": Passed(
        "env.use_wandb", lambda mode: mode not in OFF, trainer_too=True
    ),
    **_together("launcher", values.directories, "experiment_name", "trial_name", trainer=True),
    **_together(
        "launcher",
        values.directories,
        *("cluster.fileroot", "saver.fileroot", "stats_logger.fileroot"),
    ),
    **_together(
        "launcher",
        values.allocated,
        *("allocation_mode", "actor.backend", "rollout.backend"),
        *("cluster.n_nodes", "cluster.n_gpus_per_node"),
    ),
    **_together(
        "launcher",
        values.resources,
        *("launcher.inference_server_cpus_per_gpu", "launcher.inference_server_mem_per_gpu"),
        *("launcher.trainer_cpus_per_gpu", "launcher.trainer_mem_per_gpu"),
    ),
    "launcher.inference_server_env_vars": Passed("inference.env", values.variables),
    "launcher.trainer_env_vars": Passed("trainer.env", values.variables),
    "launcher.slurm.srun_additional_args": Passed("slurm.srun", values.words),
    "launcher.slurm.additional_bash_cmds": Passed("slurm.setup"),
    **_together(
        "launcher",
        values.container,
        *("launcher.slurm.container_type", "launcher.slurm.container_mounts"),
        *("launcher.slurm.trainer_image", "launcher.slurm.inference_server_image"),
    ),
}
SERVERS = Together(values.server_options, "servers")


def row_of(key: str) -> Passed | Together | None:
    return SERVERS if key.startswith(("sglang.", "vllm.")) else ROWS.get(key)


def is_areal(tree: Mapping[str, Any]) -> bool:
    """Whether a YAML file is a whole run in AReaL's form: it has a model and no own section."""
    heads = {str(key).partition(".")[0] for key in tree}
    return bool(heads & {"actor", "model"}) and not heads & {"environments", "trainer"}


def given_options(assignments: Sequence[Assignment]) -> dict[str, Any]:
    """The options by key without references; the last of each counts, and ``???`` is none.

    Raises:
        ConfigError: an option is unknown, or a reference is undefined or circular.
    """

    def stays(one: Assignment) -> bool:
        launched = row_of(one.key) is not None or one.key.startswith("model.")
        return isinstance(meaning_of(one), Ignored) and not launched

    found: dict[str, Any] = {}
    for one in resolved(assignments, stays):
        found.pop(one.key, None)  # keeps the order of the last assignments
        found[one.key] = one.value
    return {key: value for key, value in found.items() if value != MISSING}


def translated(given: Mapping[str, Any], run: RunContext) -> dict[str, Any]:
    """Return the sections of a plan; notes are added to ``run``.

    Raises:
        ConfigError: a value has no counterpart here; names the option.
    """
    places: Places = {"env.use_wandb": False, "env.total_steps": -1, "env.steps_per_eval": 0}
    done = set()
    for key, value in given.items():
        row = row_of(key)
        try:
            if isinstance(row, Together) and row.function not in done:
                done.add(row.function)
                places |= row.function(given, run)
            elif isinstance(row, Passed) and value not in row.neutral:
                places |= _passed(key, row, value, run)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error
    for key, value in given.items():
        row = row_of(key)
        if row is None or (row.trainer_too and value is not None):
            places[SETTINGS + key] = value
    return sections(places, run.environment)


def _passed(key: str, row: Passed, value: Any, run: RunContext) -> Places:
    wanted = row.convert(value)
    if wanted is None:
        return {}
    if row.place.startswith(ENV):
        return run.of_env(key, wanted, row.place.removeprefix(ENV))
    return {row.place: wanted}


def sections(places: Places, environment: str) -> dict[str, Any]:
    """The tree of a plan with one environment.

    Example: {"env.seed": 1, "inference.count": 2} is {"environments": [{"script": ...,
    "config": {"env": {"seed": 1}}}], "inference": {"count": 2}}.
    """
    config: dict[str, Any] = {}
    tree: dict[str, Any] = {"environments": [{"script": environment, "config": config}]}
    for place, value in places.items():
        if place.startswith(SETTINGS):  # the trainer reads dotted keys
            path = ["trainer", "settings", place.removeprefix(SETTINGS)]
        else:
            path = place.split(".")
        below = config if place.startswith((ENV, OPENAI)) else tree
        for name in path[:-1]:
            below = below.setdefault(name, {})
        below[path[-1]] = value
    return tree
