"""AReaL's options for environment, servers and launcher, by the place of each in a plan.

    PLACES    one option is one setting
    GROUPS    several options, or one and a look at the run, make settings

``env.*`` and ``openai.*`` are settings of the environment, and of its view of each server. What
stands in neither table is the trainer's, which takes it or notes it (``settings.areal.names``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.launch.areal import values
from example_trainer.launch.areal.values import Places, RunContext
from example_trainer.settings.areal.names import Ignored, same
from example_trainer.settings.files import Assignment, meaning_of, resolved

ENV, OPENAI, SETTINGS = "env.", "openai.", "trainer.settings."
MISSING = "???"  # a value that AReaL's reference leaves to the user
SAMPLING = {  # AReaL's name -> the servers'
    "top_p": "top_p",
    "top_k": "top_k",
    "min_new_tokens": "min_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "frequency_penalty": "frequency_penalty",
}
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
CONVERTED: dict[str, Callable[[Any], Any]] = {  # by the last part of the name
    "top_k": lambda k: None if k >= values.UNBOUNDED_TOP_K else k,
    "request_timeout": int,
    "mode": lambda mode: mode not in (False, "disabled"),
    "inference_server_env_vars": values.variables,
    "trainer_env_vars": values.variables,
    "srun_additional_args": values.words,
}
NEUTRAL = {"top_p": 1.0, "min_new_tokens": 0, "frequency_penalty": 0.0}  # the same as left out
# The process that a group is for, and its options.
GROUPS: dict[Callable[[Mapping[str, Any], RunContext], Places], tuple[str, str]] = {
    values.temperatures: (
        "environment",
        "gconfig.temperature gconfig.greedy eval_gconfig.temperature eval_gconfig.greedy",
    ),
    values.lengths: (
        "environment",
        "gconfig.max_new_tokens gconfig.max_tokens train_dataset.max_length",
    ),
    values.dataset: (
        "environment",
        "train_dataset.path train_dataset.type train_dataset.shuffle valid_dataset.path"
        " valid_dataset.type",
    ),
    values.evaluations: (
        "environment",
        "evaluator.freq_steps evaluator.freq_epochs evaluator.freq_secs"
        " evaluator.eval_before_train",
    ),
    values.epochs: (
        "trainer",
        "total_train_epochs total_train_steps train_dataset.batch_size",
    ),
    values.directories: (
        "launcher",
        "experiment_name trial_name cluster.fileroot saver.fileroot stats_logger.fileroot",
    ),
    values.allocated: (
        "launcher",
        "allocation_mode actor.backend rollout.backend cluster.n_nodes cluster.n_gpus_per_node",
    ),
    values.resources: (
        "launcher",
        "launcher.inference_server_cpus_per_gpu launcher.inference_server_mem_per_gpu"
        " launcher.trainer_cpus_per_gpu launcher.trainer_mem_per_gpu",
    ),
    values.container: (
        "launcher",
        "launcher.slurm.container_type launcher.slurm.container_mounts"
        " launcher.slurm.trainer_image launcher.slurm.inference_server_image",
    ),
}
GROUP_OF = {name: group for group, (_, names) in GROUPS.items() for name in names.split()}
TRAINER_TOO = frozenset(
    "seed gconfig.n_samples stats_logger.wandb.mode total_train_steps train_dataset.batch_size"
    " experiment_name trial_name evaluator.freq_steps evaluator.freq_epochs evaluator.freq_secs"
    " evaluator.eval_before_train".split()
)


def group_of(key: str) -> Callable[[Mapping[str, Any], RunContext], Places] | None:
    is_servers = key.startswith(("sglang.", "vllm."))
    return values.server_options if is_servers else GROUP_OF.get(key)


def is_launched(key: str) -> bool:
    """Whether an option is not only the trainer's."""
    return key in PLACES or group_of(key) is not None


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
        launched = is_launched(one.key) or one.key.startswith("model.")
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
        group = group_of(key)
        try:
            if group is not None and group not in done:
                done.add(group)
                places |= group(given, run)
            elif key in PLACES:
                places |= _placed(key, value, run)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{key}: {error}") from error
    for key, value in given.items():
        if not is_launched(key) or (key in TRAINER_TOO and value is not None):
            places[SETTINGS + key] = value
    return sections(places, run.environment)


def _placed(key: str, value: Any, run: RunContext) -> Places:
    name, place = key.rpartition(".")[2], PLACES[key]
    if value in (None, "", [], NEUTRAL.get(name, NEUTRAL.get(key))):
        return {}
    wanted = CONVERTED.get(name, same)(value)
    if place.startswith(ENV):
        return run.of_env(key, wanted, place.removeprefix(ENV))
    return {} if wanted is None else {place: wanted}


def sections(places: Places, environment: str) -> dict[str, Any]:
    """The tree of a plan with one environment.

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
