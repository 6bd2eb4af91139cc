"""AReaL's options that together, or with a look at the run, make settings of a plan. Pure.

Each function takes the given options and the run, and returns values by their place; see
``options``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from atroposlib.errors import ConfigError
from example_trainer.launch.areal import allocation
from example_trainer.settings.areal.defaults import as_actor, is_supervised, left_out
from example_trainer.settings.areal.other_commands import TYPE

Given = Mapping[str, Any]
Places = dict[str, Any]  # "env.temperature", "openai.timeout", "inference.count" ... -> value
PROMPT_TOKENS = 1024  # room for a prompt without train_dataset.max_length
UNBOUNDED_TOP_K = 1_000_000  # AReaL's default, 1e8, keeps the whole vocabulary
SFT_ENVIRONMENT = "sft_loader"
HELD_OUT = "the environment evaluates its own held-out tasks"


class Dataset(NamedTuple):
    """A data set of AReaL's examples: who asks its questions, and its name and size."""

    environment: str
    hub: str
    rows: int


# By a part of the last component of train_dataset.path.
DATASETS = {"gsm8k": Dataset("gsm8k", "openai/gsm8k", 7473)}


@dataclass
class RunContext:
    """Facts of a run besides its options, and notes on keys without effect: reason -> keys.

    ``fields`` are the settings of the environment; ``rows`` counts the training data.
    """

    environment: str
    fields: frozenset[str]
    engine: str = "local"
    on_cluster: bool = False
    data_is_local: bool = False
    rows: int | None = None
    notes: dict[str, list[str]] = field(default_factory=dict)

    def note(self, key: str, reason: str) -> None:
        self.notes.setdefault(reason, []).append(key)

    def of_env(self, key: str, value: Any, name: str) -> Places:
        """The value for a setting of the environment; a note where it lacks the setting."""
        if name in self.fields:
            return {f"env.{name}": value}
        self.note(key, f"the environment {self.environment} has no setting {name}")
        return {}


def environment_of(options: Given, named: str | None) -> str:
    """The environment that plays the part of AReaL's workflow.

    Raises ConfigError: none is named or known for this data set; names what to write.
    """
    path = options.get("train_dataset.path")
    known = known_dataset(path)
    usual = SFT_ENVIRONMENT if is_supervised(options) else known and known.environment
    if not (named or usual):
        raise ConfigError(
            f"train_dataset.path {path}: no environment is known to ask its questions; write"
            " --env FILE or --env NAME (`atropos env list`), in place of AReaL's workflow"
        )
    return str(named or usual)


def with_defaults(options: Given) -> dict[str, Any]:
    """The options after AReaL's defaults of omitted options; the model of SFT as the actor.

    A text of SFT makes one sequence, and its data may have no type.
    """
    sft = {"gconfig.n_samples": 1, TYPE: "sft"} if is_supervised(options) else {}
    return {**defaults_of(options), **sft, **{as_actor(key): v for key, v in options.items()}}


def defaults_of(options: Given) -> dict[str, Any]:
    """AReaL's defaults of what a whole run leaves out; raises as is_supervised."""
    ends = {"total_train_epochs", "total_train_steps"}
    return left_out(options) | ({"total_train_epochs": 1} if not ends & options.keys() else {})


def known_dataset(path: Any) -> Dataset | None:
    name = Path(str(path)).name.lower()
    return next((known for part, known in DATASETS.items() if part in name), None)


# --- the run and its processes -----------------------------------------------------------


def directories(options: Given, run: RunContext) -> Places:
    """As in AReaL all files of a trial lie below cluster.fileroot/experiment_name/trial_name."""
    names = [str(options[k]) for k in ("experiment_name", "trial_name") if k in options]
    root = options.get("cluster.fileroot", "runs")
    places = {"out": str(Path(os.path.expanduser(root), *names))}
    if names:
        places["name"] = re.sub(r"[^\w.-]", "-", "_".join(names))
    for key in ("saver.fileroot", "stats_logger.fileroot"):
        if options.get(key) not in (None, options.get("cluster.fileroot")):
            places[f"trainer.settings.{key}"] = options[key]
    return places


def allocation_of(options: Given) -> allocation.Allocation:
    """Allocation by allocation_mode, or by the backends that newer versions have instead."""
    backends = [options.get("rollout.backend"), options.get("actor.backend")]
    return allocation.parse(
        str(
            options.get("allocation_mode")
            or "+".join(str(backend) for backend in backends if backend)
        )
    )


def allocate(options: Given, run: RunContext) -> Places:
    nodes, per_node = options.get("cluster.n_nodes"), options.get("cluster.n_gpus_per_node")
    wanted = allocation_of(options)
    if wanted.engine is not None:
        wanted = replace(wanted, engine=run.engine)  # the engine may have been replaced
    if wanted.other_degrees:
        key = "allocation_mode" if options.get("allocation_mode") else "actor.backend"
        run.note(key, f"its ranks shard by FSDP and have no degrees {wanted.other_degrees}")
    return allocation.places(wanted, nodes, per_node, run.on_cluster)


# Setting of each kind of cluster -> its value from the CPUs or MB of a process.
RESOURCES: dict[str, dict[str, Callable[[int], Any]]] = {
    "cpus": {
        "slurm.{}.cpus-per-task": int,
        "k8s.resources.{}.cpu": int,
        "ray.resources.{}.CPU": int,
    },
    "mem": {
        "slurm.{}.mem": "{}M".format,
        "k8s.resources.{}.memory": "{}Mi".format,
        "ray.resources.{}.memory": lambda megabytes: megabytes * 2**20,
    },
}


def resources(options: Given, run: RunContext) -> Places:
    """CPUs and MB of a process, from the values per GPU, for each kind of cluster."""
    ranks = allocate(options, run).get("trainer.nproc", 1)
    gpus_of = {"inference_server": allocation_of(options).tensor_parallel, "trainer": ranks}
    return {
        place.format(role.removesuffix("_server")): value_of(per_gpu * gpus)
        for role, gpus in gpus_of.items()
        for what, places in RESOURCES.items()
        if (per_gpu := options.get(f"launcher.{role}_{what}_per_gpu")) is not None
        for place, value_of in places.items()
    }


def container(options: Given, run: RunContext) -> Places:
    """Words in front of each role's command; API and environments share the trainer's image."""
    option = {
        k.rpartition(".")[2]: v for k, v in options.items() if k.startswith("launcher.slurm.")
    }
    mounts = option.get("container_mounts")
    words = [option.get("container_type", "apptainer"), "exec", "--nv"]
    words += ["--bind", mounts] if mounts else []
    images = dict.fromkeys(("api", "environment", "trainer"), option.get("trainer_image"))
    images["inference"] = option.get("inference_server_image")
    if words[0] == "none":
        return {}
    return {
        f"slurm.container.{role}": [*words, image] for role, image in images.items() if image
    }


def variables(text: Any) -> dict[str, str]:
    """``A=1,B=2`` as a mapping."""
    pairs = [pair.strip().partition("=") for pair in str(text).split(",") if pair.strip()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ConfigError(f"{', '.join(wrong)}: variables are written A=1,B=2")
    return {name: value for name, _, value in pairs}


def words(text: Any) -> list[str]:
    return shlex.split(os.path.expandvars(str(text)))


# --- servers -----------------------------------------------------------------------------

SERVER_PLACES = {
    "mem_fraction_static": "inference.memory_share",
    "gpu_memory_utilization": "inference.memory_share",
    "context_length": "inference.max_model_len",
    "max_model_len": "inference.max_model_len",
    "model_path": "inference.model",
    "model": "inference.model",
}
WIRED = frozenset(
    "random_seed seed tp_size tensor_parallel_size dp_size host port worker_extension_cls"
    " enable_lora max_lora_rank lora_modules".split()
)


def server_options(options: Given, run: RunContext) -> Places:
    """Options of the running engine's section; without a place they become its arguments."""
    places, args = Places(), list[str]()
    for key, value in options.items():
        section, _, name = key.partition(".")
        if section not in ("sglang", "vllm") or value in (None, ""):
            continue
        if section != run.engine:
            run.note(key, f"the servers are {run.engine}")
        elif name in WIRED:
            run.note(key, "follows from allocation_mode and the trainer's settings")
        elif name in SERVER_PLACES:
            places[SERVER_PLACES[name]] = value
        else:
            args += argument(section, name, value)
    return {**places, "inference.args": args}


def argument(engine: str, name: str, value: Any) -> list[str]:
    """An option as words: switches bare, lists as several words, mappings as JSON.

    A switch that is false is left out for SGLang, and turned off for vLLM.
    """
    flag = "--" + name.replace("_", "-")
    if value is False:
        is_off_anyway = engine == "sglang" or name.startswith(("no_", "disable_"))
        return [] if is_off_anyway else [flag.replace("--", "--no-", 1)]
    if isinstance(value, (bool, list)):
        return [flag, *map(str, value if isinstance(value, list) else ())]
    return [flag, json.dumps(value) if isinstance(value, Mapping) else str(value)]


# --- the environment ----------------------------------------------------------------------


def temperatures(options: Given, run: RunContext) -> Places:
    places = Places()
    for section, name in (("gconfig", "temperature"), ("eval_gconfig", "eval_temperature")):
        value = (
            0.0 if options.get(f"{section}.greedy") else options.get(f"{section}.temperature")
        )
        if value is not None:
            places |= run.of_env(f"{section}.temperature", value, name)
    return places


def lengths(options: Given, run: RunContext) -> Places:
    """Tokens of an answer, and of a sequence: the longest prompt and the longest answer."""
    answer = options.get("gconfig.max_new_tokens")
    sequence, places = options.get("train_dataset.max_length"), Places()
    if answer is not None:
        sequence = (PROMPT_TOKENS if sequence is None else sequence) + answer
        own = [name for name in ("max_tokens", "max_new_tokens") if name in run.fields]
        places = {"openai.sampling.max_tokens": answer, **{f"env.{k}": answer for k in own}}
    known = [n for n in (sequence, options.get("gconfig.max_tokens")) if n is not None]
    if known:
        places |= {"env.max_token_length": min(known), "trainer.settings.seq_len": min(known)}
    return places


def dataset(options: Given, run: RunContext) -> Places:
    """The data of the environment, whose held-out part serves as AReaL's valid_dataset.

    Raises ConfigError: the path is not local, and the environment reads another set of the
    hub.
    """
    path, known = (
        options.get("train_dataset.path"),
        known_dataset(options.get("train_dataset.path")),
    )
    if options.get("valid_dataset.path") not in (None, path):
        run.note("valid_dataset.path", HELD_OUT)
    if options.get("train_dataset.shuffle") is False:
        run.note("train_dataset.shuffle", "the environment orders its tasks by env.seed")
    is_usual = known is not None and known[:2] == (run.environment, path)
    if path is None or is_usual:
        return {}
    if run.data_is_local:
        return run.of_env("train_dataset.path", path, "dataset_path")
    if "dataset_path" in run.fields and "dataset_name" not in run.fields:
        raise ConfigError(
            f"there is no file or folder {path}, and the environment"
            f" {run.environment} reads no other data set of the hub: name a .jsonl, .json or"
            " .parquet file, a folder of them, or another environment by --env"
        )
    return run.of_env("train_dataset.path", path, "dataset_name")


def steps_of_epoch(options: Given, run: RunContext) -> int | None:
    prompts = options.get("train_dataset.batch_size")
    return None if run.rows is None or prompts is None else max(1, run.rows // prompts)


def epochs(options: Given, run: RunContext) -> Places:
    """Steps of an epoch where the number of rows is known; epochs then end the run as in AReaL."""
    steps, times = steps_of_epoch(options, run), options.get("total_train_epochs")
    if options.get("total_train_steps") is not None:
        times = None
    if steps is None:
        if times is not None:
            run.note("total_train_epochs", "of data not counted here; set total_train_steps")
        return {}
    places: Places = {"trainer.settings.steps_per_epoch": steps}
    if times is not None:
        places["trainer.settings.training_steps"] = steps * times
    return places


def evaluations(options: Given, run: RunContext) -> Places:
    """The environment evaluates between the trainer's steps; without a frequency never."""
    steps, times = options.get("evaluator.freq_steps"), options.get("evaluator.freq_epochs")
    if steps is None and times is not None:
        steps = (steps_of_epoch(options, run) or 0) * times
        if steps == 0:
            run.note(
                "evaluator.freq_epochs", "of data not counted here; set evaluator.freq_steps"
            )
    if options.get("evaluator.freq_secs") is not None:
        run.note("evaluator.freq_secs", "environments evaluate by steps: evaluator.freq_steps")
    has_data = options.get("valid_dataset", "given") is not None
    places: Places = {"env.steps_per_eval": steps if steps and has_data else 0}
    if options.get("evaluator.eval_before_train"):
        places["env.eval_at_start"] = True
    return places
