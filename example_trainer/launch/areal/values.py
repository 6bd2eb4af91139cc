"""AReaL's options that several together, or a look at the run, turn into the plan; see ``options``.

Each function takes the given options and the run, and returns values by place in the plan. Pure.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.launch.areal import allocation
from example_trainer.launch.areal.allocation import Allocation

Given = Mapping[str, Any]
Places = dict[str, Any]  # "env.temperature", "openai.timeout", "inference.count" ... -> value
PROMPT_TOKENS = 1024  # room for a prompt where train_dataset.max_length does not say
UNBOUNDED_TOP_K = 1_000_000  # AReaL's default, 1e8, keeps the whole vocabulary


@dataclass(frozen=True)
class Dataset:
    """What a data set of AReaL's examples is here."""

    environment: str
    hub: str
    rows: int


# By a part of the last component of train_dataset.path.
DATASETS = {"gsm8k": Dataset("gsm8k", "openai/gsm8k", 7473)}
SFT_ENVIRONMENT = "sft_loader"


@dataclass
class RunContext:
    """What the translation knows besides the options; ``notes`` collects reasons -> keys.

    ``fields`` are the settings of the environment, ``rows`` of the training data are counted
    where they are a local file or folder.
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

    def of_env(self, key: str, value: Any, *names: str) -> Places:
        """The value for the first of ``names`` that the environment has; none: a note."""
        for name in names:
            if name in self.fields:
                return {f"env.{name}": value}
        self.note(
            key, f"the environment {self.environment} has no setting {' or '.join(names)}"
        )
        return {}


def environment_of(given: Given, named: str | None) -> str:
    """The environment that plays the part of AReaL's workflow script.

    Raises:
        ConfigError: none is named, and none reads this data set; says what to write.
    """
    if str(given.get("train_dataset.type")) == "rw" or given.get("model.is_critic"):
        raise ConfigError(
            "`atropos train rm` trains a reward model: its files are lines of pairs"
        )
    if named is not None:
        return named
    if any(key.startswith("model.") for key in given):
        return SFT_ENVIRONMENT
    path = given.get("train_dataset.path")
    if (known := known_dataset(path)) is not None:
        return known.environment
    raise ConfigError(
        f"train_dataset.path {path}: no environment is known to ask its questions; write --env FILE"
        " or --env NAME (`atropos env list`), in place of AReaL's workflow"
    )


def as_rl(given: Given) -> dict[str, Any]:
    """The options with ``model``, of AReaL's SFT, as the actor: one text makes one sequence."""
    if not any(key.startswith("model.") for key in given):
        return dict(given)
    renamed = {re.sub("^model[.]", "actor.", key): value for key, value in given.items()}
    return {"gconfig.n_samples": 1, "loss": "cross_entropy", **renamed}


def engine_of(given: Given) -> Any:
    return allocation_of(given).engine or "auto"


def known_dataset(path: Any) -> Dataset | None:
    name = Path(str(path)).name.lower()
    return next((known for part, known in DATASETS.items() if part in name), None)


def rows_of(given: Given) -> int | None:
    known = known_dataset(given.get("train_dataset.path"))
    return known.rows if known and given["train_dataset.path"] == known.hub else None


# --- the run and its processes -----------------------------------------------------------


def directories(given: Given, run: RunContext) -> Places:
    """As in AReaL all files of a trial lie below cluster.fileroot/experiment_name/trial_name."""
    words = [str(given[k]) for k in ("experiment_name", "trial_name") if k in given]
    found = {"name": re.sub(r"[^\w.-]", "-", "_".join(words))} if words else {}
    root = given.get("cluster.fileroot", "runs")
    found["out"] = str(
        Path(os.path.expanduser(root), *words) if words else Path(root, "areal")
    )
    for key in ("saver.fileroot", "stats_logger.fileroot"):
        if given.get(key) not in (None, given.get("cluster.fileroot")):
            found[f"trainer.settings.{key}"] = given[key]
    return found


def allocated(given: Given, run: RunContext) -> Places:
    nodes, per_node = given.get("cluster.n_nodes"), given.get("cluster.n_gpus_per_node")
    wanted = allocation_of(given)
    if wanted.engine is not None:
        wanted = replace(wanted, engine=run.engine)  # which may have been replaced
    return allocation.places(wanted, nodes, per_node, run.on_cluster)


def allocation_of(given: Given) -> Allocation:
    """Of allocation_mode, or of the backends that newer versions have instead."""
    parts = (given.get("rollout.backend"), given.get("actor.backend"))
    text = given.get("allocation_mode") or "+".join(str(part) for part in parts if part)
    return allocation.parse(str(text or ""))


def resources(given: Given, run: RunContext) -> Places:
    """CPUs and MB per GPU become those of a job's task."""
    wanted, found = allocation_of(given), Places()
    ranks = allocated(given, run).get("trainer.nproc", 1)
    for role, ours, gpus in (
        ("inference_server", "inference", wanted.tensor_parallel),
        ("trainer", "trainer", ranks),
    ):
        if (cpus := given.get(f"launcher.{role}_cpus_per_gpu")) is not None:
            found[f"slurm.{ours}.cpus-per-task"] = cpus * gpus
        if (megabytes := given.get(f"launcher.{role}_mem_per_gpu")) is not None:
            found[f"slurm.{ours}.mem"] = f"{megabytes * gpus}M"
    return found


def container(given: Given, run: RunContext) -> Places:
    """Words in front of each role's command; API and environments share the trainer's image."""
    kind = given.get("launcher.slurm.container_type", "apptainer")
    mounts = given.get("launcher.slurm.container_mounts")
    found = Places()
    for key, roles in (
        ("trainer_image", ("api", "environment", "trainer")),
        ("inference_server_image", ("inference",)),
    ):
        image = given.get(f"launcher.slurm.{key}")
        if image and kind != "none":
            words = [kind, "exec", "--nv", *(("--bind", mounts) if mounts else ()), image]
            found |= {f"slurm.container.{role}": words for role in roles}
    return found


def variables(text: str) -> dict[str, str]:
    """``A=1,B=2`` as a mapping."""
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ConfigError(f"{', '.join(wrong)}: variables are written A=1,B=2")
    return {name: value for name, _, value in pairs}


def words(text: str) -> list[str]:
    return shlex.split(os.path.expandvars(text))


# --- servers -----------------------------------------------------------------------------

SERVER_PLACES = {
    "mem_fraction_static": "inference.memory_share",
    "gpu_memory_utilization": "inference.memory_share",
    "context_length": "inference.max_model_len",
    "max_model_len": "inference.max_model_len",
}
MODEL = ("model_path", "model")
WIRED = {
    **dict.fromkeys(
        ("random_seed", "seed"), "each server has the trainer's seed plus its number"
    ),
    **dict.fromkeys(
        ("tp_size", "tensor_parallel_size", "dp_size", "host", "port", "worker_extension_cls"),
        "set by the launcher (inference.*)",
    ),
    **dict.fromkeys(
        ("enable_lora", "max_lora_rank", "lora_modules"), "set by the trainer's actor.use_lora"
    ),
}


def server_options(given: Given, run: RunContext) -> Places:
    """Options of the section of the engine that runs; the rest as its arguments."""
    found, args = Places(), list[str]()
    for key, value in given.items():
        section, _, name = key.partition(".")
        if section not in ("sglang", "vllm") or value is None or value == "":
            continue
        if section != run.engine:
            run.note(key, f"the servers are {run.engine}")
        elif name in WIRED:
            run.note(key, WIRED[name])
        elif name in SERVER_PLACES:
            found[SERVER_PLACES[name]] = value
        elif name in MODEL:
            found |= {} if value == given.get("actor.path") else {"inference.model": value}
        else:
            args += argument(section, name, value)
    return {**found, **({"inference.args": args} if args else {})}


def argument(engine: str, name: str, value: Any) -> list[str]:
    """One option as words: switches bare, lists as several words, mappings as JSON.

    A switch that is false is left out, which is SGLang's way to say it; vLLM's are turned off.
    """
    flag = "--" + name.replace("_", "-")
    if value is False:
        is_off_anyway = engine == "sglang" or name.startswith(("no_", "disable_"))
        return [] if is_off_anyway else [flag.replace("--", "--no-", 1)]
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, Mapping) else str(value)]


# --- the environment ----------------------------------------------------------------------


def top_k(value: int) -> int | None:
    return None if value >= UNBOUNDED_TOP_K else value


def temperatures(given: Given, run: RunContext) -> Places:
    found = Places()
    for section, name in (("gconfig", "temperature"), ("eval_gconfig", "eval_temperature")):
        key = f"{section}.temperature"
        value = 0.0 if given.get(f"{section}.greedy") else given.get(key)
        if value is not None and (run.environment != SFT_ENVIRONMENT):
            found |= run.of_env(key, value, name)
    return found


def lengths(given: Given, run: RunContext) -> Places:
    """Tokens of an answer, and of a sequence: the longest prompt and the longest answer."""
    answer = given.get("gconfig.max_new_tokens")
    prompt, whole = given.get("train_dataset.max_length"), given.get("gconfig.max_tokens")
    found = Places()
    if answer is not None:
        limit = [name for name in ("max_tokens", "max_new_tokens") if name in run.fields][:1]
        found |= {f"env.{name}": answer for name in limit}
        found["openai.sampling.max_tokens"] = answer
        prompt = (PROMPT_TOKENS if prompt is None else prompt) + answer
    known = [tokens for tokens in (prompt, whole) if tokens is not None]
    if known:
        found |= {"env.max_token_length": min(known), "trainer.settings.seq_len": min(known)}
    return found


def dataset(given: Given, run: RunContext) -> Places:
    """The data of the environment; its held-out part serves as AReaL's valid_dataset.

    Raises:
        ConfigError: the path is not local, and the environment reads another set of the hub.
    """
    path, valid = given.get("train_dataset.path"), given.get("valid_dataset.path")
    if valid is not None and valid != path:
        run.note("valid_dataset.path", "evaluation takes the environment's own held-out tasks")
    if given.get("train_dataset.shuffle") is False:
        run.note("train_dataset.shuffle", "the environment orders its tasks by env.seed")
    known = known_dataset(path)
    is_usual = known is not None and (known.environment, known.hub) == (run.environment, path)
    if path is None or is_usual:
        return {}
    if run.data_is_local:
        return run.of_env("train_dataset.path", path, "dataset_path")
    if "dataset_path" in run.fields and "dataset_name" not in run.fields:
        raise ConfigError(
            f"train_dataset.path: there is no file or folder {path}, and the environment"
            f" {run.environment} reads no other data set of the hub: name a .jsonl, .json or"
            " .parquet file, a folder of them, or another environment by --env"
        )
    return run.of_env("train_dataset.path", path, "dataset_name")


def steps_of_epoch(given: Given, run: RunContext) -> int | None:
    prompts = given.get("train_dataset.batch_size")
    return None if run.rows is None or prompts is None else max(1, run.rows // prompts)


def epochs(given: Given, run: RunContext) -> Places:
    """Steps of an epoch where the number of rows is known; epochs then end the run as in AReaL."""
    steps, times = steps_of_epoch(given, run), given.get("total_train_epochs")
    if given.get("total_train_steps") is not None:
        times = None
    if steps is None:
        if times is not None:
            run.note("total_train_epochs", "of data not counted here; set total_train_steps")
        return {}
    found: Places = {"trainer.settings.steps_per_epoch": steps}
    if times is not None:
        found["trainer.settings.training_steps"] = steps * times
    return found


def evaluations(given: Given, run: RunContext) -> Places:
    """The environment evaluates between the trainer's steps; without a frequency never."""
    steps, times = given.get("evaluator.freq_steps"), given.get("evaluator.freq_epochs")
    epoch = steps_of_epoch(given, run)
    if steps is None and times is not None:
        steps = epoch and times * epoch
        if epoch is None:
            run.note(
                "evaluator.freq_epochs", "of data not counted here; set evaluator.freq_steps"
            )
    if given.get("evaluator.freq_secs") is not None:
        run.note("evaluator.freq_secs", "environments evaluate by steps: evaluator.freq_steps")
    if given.get("valid_dataset", "given") is None:
        steps = 0
    found: Places = {"env.steps_per_eval": steps or 0}
    if given.get("evaluator.eval_before_train"):
        found["env.eval_at_start"] = True
    return found
