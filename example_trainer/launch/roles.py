"""Commands of every process, from the plan and the addresses of the processes.

Pure except for the settings files of the processes, written below ``<out>/launch``.

The same functions serve ``local`` (all on 127.0.0.1) and ``node`` (a job of a cluster).
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.settings.references import VARIABLE, with_variables
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command import logs
from atroposlib.utils.command.references import installed_environments
from atroposlib.utils.command.startup import SEAT
from atroposlib.utils.io import write_whole
from atroposlib.utils.models import weight_folders
from example_trainer.launch.plan import (
    EnvironmentSection,
    Plan,
    default_settings,
    trainer_settings,
)
from example_trainer.launch.servers import CHAT_TYPES, ServerCommand, choose_engine
from example_trainer.launch.teachers.problems import TaughtEnvironment, teacher_problems
from example_trainer.launch.teachers.section import ServerSection
from example_trainer.launch.teachers.wiring import (
    logprob_arguments,
    teacher_of,
    with_addresses,
)
from example_trainer.settings.algorithms import KEY, algorithms_of
from example_trainer.settings.environment_keys import environment_label
from example_trainer.settings.section import fill_words
from example_trainer.settings.weights import ServingSettings
from example_trainer.state import end

STORE = "store"  # file in the folder of the plan: the address of a store with a password
STORE_VARIABLE, STORE_NAMES = "ATROPOS_STORE", ("memory", "sqlite")
DIRECTORY = "directory://"  # the servers that the rollout API lists
READY = "atroposlib.environments"
TORCHRUN = "example_trainer.distributed.torchrun"  # a name: the launcher imports no torch


@dataclass(frozen=True)
class Endpoints:
    """Addresses of the processes of a run: ``http://host:port`` without a path.

    Attributes:
        inference: of servers, for commands that take addresses once; the rest ask the API.
        api_file: holds the address of the API, which may change while the run goes on.
        evaluation: of the server for evaluations alone.
        teachers: of each teacher, by its name; on a cluster ``file://`` of a file that holds it.
    """

    api: str
    inference: tuple[str, ...] = ()
    api_file: Path | None = None
    evaluation: str | None = None
    teachers: Mapping[str, str] = field(default_factory=dict)

    @property
    def api_address(self) -> str:
        """Address of the API for processes of this package, which read a file again."""
        return self.api_file.as_uri() if self.api_file else self.api


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    env: dict[str, str]


def api(plan: Plan, python: str, host: str, port: int) -> Command:
    """Return the command of the rollout API; the address of its store is no word of it."""
    store, data, env = store_of(plan), plan.api.data, dict(plan.api.env)
    if "://" in store or store in STORE_NAMES:
        env[STORE_VARIABLE] = store
    elif store:
        data = store
    listening = ("--host", host, "--port", str(port))
    keeping = ("--data-dir", str(plan.directory / data))
    argv = (python, "-m", "atroposlib.cli.run_api", *listening, *keeping, *plan.api.args)
    return Command(argv, env)


def store_of(plan: Plan) -> str:
    """Return the store of the plan, with variables of this machine and its password; or nothing.

    Raises:
        ConfigError: a variable is not set, or there is no store of this kind.
    """
    text, place = plan.store or "", plan.places.get("store", "store")
    if logs.REDACTED in text:
        text = (plan.files / STORE).read_text(encoding="utf-8").strip()
    store = with_variables(text, os.environ, place)
    if "://" in store and not store.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"{place} should be postgresql://..., memory, or a folder")
    return store


def redacted_store(plan: Plan) -> str | None:
    """Return the store as a plan for other machines holds it: references, but no password."""
    without_references = VARIABLE.sub("", plan.store or "")
    if re.search("password=[^&]", without_references):
        return f"postgresql://{logs.REDACTED}"
    has_password = logs.redact(without_references) != without_references
    return logs.redact(plan.store or "") if has_password else plan.store


def inference(
    plan: Plan,
    served: ServingSettings,
    python: str,
    host: str,
    port: int,
    index: int,
    at: Endpoints,
    *,
    announced: str | None = None,
    gpus: str | None = None,
    memory_share: float | None = None,
    is_announced: bool = True,
) -> Command:
    """Return the command of server ``index``, which announces itself to the API.

    Args:
        is_announced: False for the server of evaluations: it gets no rollouts.
        announced: host name to announce, if it is not ``host``.
        gpus: CUDA_VISIBLE_DEVICES; None: all that its job sees.
        memory_share: of each GPU; None: the engine's default.
    """
    wanted = plan.inference
    published = trainer_settings(plan)[1].published
    server = replace(
        _server(wanted, wanted.model or served.model_name, python, host, port, announced),
        gpus=gpus,
        memory_share=memory_share,
        lora_rank=served.published_lora_rank,
        seed=served.seed + index,
        env={weight_folders.VARIABLE: str(published.resolve()), **wanted.env},
    )
    if not is_announced:
        return Command(server.argv, server.environment)
    url = f"http://{announced or host}:{port}"
    telling = ("--api", at.api_address, "--name", f"inference-{index}", "--url", url, "--")
    argv = (python, "-m", "atroposlib.client.announce", *telling, *server.argv)
    return Command(argv, server.environment)


def teacher(
    plan: Plan,
    served: ServingSettings,
    python: str,
    number: int,
    host: str,
    port: int,
    *,
    announced: str | None = None,
    gpus: str | None = None,
    memory_share: float | None = None,
) -> Command:
    """Return the command of a teacher, which no trainer knows, so that its weights stay.

    Args: as of :func:`inference`.
    """
    name, wanted = list(plan.teachers.items())[number]
    server = _server(wanted, wanted.model, python, host, port, announced)
    more: tuple[str, ...] = ()
    if server.engine == "vllm" and not any("--max-logprobs" in w for w in wanted.args):
        more = logprob_arguments(name, plan.environments)
    server = replace(
        server,
        gpus=gpus,
        memory_share=memory_share,
        extended=False,
        seed=served.seed,
        args=(*more, *server.args),
        env={"VLLM_SERVER_DEV_MODE": "0", **wanted.env},
    )
    return Command(server.argv, server.environment)


def _server(
    wanted: ServerSection, model: str, python: str, host: str, port: int, announced: str | None
) -> ServerCommand:
    """The command that both kinds of servers have in common."""
    engine = choose_engine(wanted.engine)
    known = engine != "local" or announced is None or "." not in announced
    return ServerCommand(
        engine=engine,
        model=model,
        host=host,
        port=port,
        python=wanted.python or python,
        extended=wanted.python is None,
        tensor_parallel=wanted.tensor_parallel,
        float32_head=wanted.float32_head,
        max_model_len=wanted.max_model_len,
        dtype=wanted.dtype,
        args=(*wanted.args, *(() if known else ("--allow-host", str(announced)))),
    )


def environment_name(plan: Plan, number: int) -> str:
    """Return the name of an environment: the configured name, else that of its script."""
    return environment_label(plan.environments[number].model_dump(), number)


def needs_servers(wanted: EnvironmentSection) -> bool:
    """Whether the command of an environment gets addresses of servers at its start."""
    return any("{inference_url" in word for word in wanted.command or ())


def environment(
    plan: Plan,
    served: ServingSettings,
    python: str,
    number: int,
    at: Endpoints,
    copy: str = "0",
) -> Command:
    """Return the command of an environment; its script gets settings as a YAML file.

    Each life of a copy has the same seat, so that the rollout API lets the earlier life go.
    Of a command of the author's own nobody knows how many environments it starts.
    """
    wanted = plan.environments[number]
    if wanted.command is not None:
        words = fill_words(
            wanted.command,
            api_url=at.api,
            inference_url=at.inference[0] if at.inference else "",
            inference_urls=",".join(at.inference),
            model=served.model_name,
            python=python,
            out=plan.directory,
            **{f"teachers.{name}": url for name, url in at.teachers.items()},
        )
        return Command(tuple(words), dict(wanted.env))
    path = plan.launched / f"environment-{number}.yaml"
    write_yaml(path, environment_settings(plan, number, served, at))
    start = (*script_words(str(wanted.script)), "serve", "--config", str(path))
    return Command((python, *start, *wanted.args), {SEAT: f"{number}-{copy}", **wanted.env})


def script_words(script: str) -> tuple[str, ...]:
    """Words after ``python``: a file, a ready environment or a name of `atropos env list`.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(script)
    if path.is_file():
        return (script,)
    is_ready = str(path.parent) in (".", "environments") and path.stem.isidentifier()
    for ending in ("", "_server", "_env") if is_ready else ():
        module = f"{READY}.{path.stem}{ending}"
        if find_spec(module) is not None:
            return ("-m", module)
    names = {
        name
        for entry in installed_environments()
        for name in (entry.name, f"{entry.package}:{entry.name}")
    }
    adapter = script.partition(":")[0] if ":" in script else ""
    if script in names or (adapter and find_spec(f"atroposlib.adapters.{adapter}")):
        return ("-m", "atroposlib.cli.atropos", "env", "run", script)
    raise ConfigError(f"environments: no file {script} here (`atropos env list` lists others)")


def name_in_algorithms(plan: Plan, number: int) -> str:
    """Return the name by which an environment registers in a run with algorithms."""
    own = plan.environments[number].config.get("env") or {}
    return str(own.get("wandb_name") or environment_name(plan, number))


def environment_settings(
    plan: Plan, number: int, served: ServingSettings, at: Endpoints
) -> dict[str, Any]:
    """Return the environment's settings, merged over the addresses and names of the run."""
    wanted = plan.environments[number]
    servers = {
        "base_url": DIRECTORY,
        "model_name": served_name(plan, served),
        "server_type": CHAT_TYPES[choose_engine(plan.inference.engine)],
        "api_key": "none",
    }
    wiring: dict[str, Any] = {
        "rollout_server_url": at.api_address,
        "tokenizer_name": served.model_name,
    }
    # The trainer knows environments by these names, for algorithms and in errors about teachers.
    if trainer_settings(plan)[1].algorithms or plan.teachers:
        wiring["wandb_name"] = name_in_algorithms(plan, number)
    if environment_name(plan, number) in evaluated_environments(plan):
        wiring["steps_per_eval"] = 0  # the trainer evaluates it
    own = dict(wanted.config)
    types = {
        name: CHAT_TYPES[choose_engine(wanted.engine)]
        for name, wanted in plan.teachers.items()
    }
    env = with_addresses({**wiring, **(own.pop("env", None) or {})}, at.teachers, types)
    if isinstance(own.get("openai"), Mapping):  # settings of every server
        servers |= own.pop("openai")
    return {"strict": True, "openai": servers, **own, "env": env}


def evaluated_environments(plan: Plan) -> list[str]:
    """Names of the plan's environments that the trainer evaluates."""
    names = [environment_name(plan, number) for number in range(len(plan.environments))]
    first_words = [entry.split()[:1] for entry in trainer_settings(plan)[1].eval_environments]
    return [name for name in names if [name] in first_words]


def needs_evaluation_server(plan: Plan) -> bool:
    """Whether the run has a server for evaluations alone."""
    cfg = trainer_settings(plan)[1]
    return cfg.eval_where == "dir" and cfg.eval_url is None


def evaluation_problems(plan: Plan, on_cluster: bool) -> Iterator[str]:
    """Problems of the plan with the servers of evaluations, a sentence each."""
    if on_cluster and needs_evaluation_server(plan):
        yield (
            "evaluation.where=dir needs trainer.settings.eval_url on a cluster: the address of a"
            " server that you start; or choose held"
        )
    if trainer_settings(plan)[1].eval_where != "held":
        return
    if plan.inference.count < 2:
        yield (
            "evaluation.where=held needs inference.count of 2 or more: one keeps its version, the"
            " others go on; or choose dir"
        )
    if any(map(needs_servers, plan.environments)):
        yield (
            "evaluation.where=held needs environments that follow directory://, and a command names"
            " {inference_url}: it would go on to sample held servers; choose dir"
        )


def algorithm_problems(plan: Plan, algorithms: Iterable[str]) -> Iterator[str]:
    """Algorithms of environments that the plan does not start.

    A command may register any name.
    """
    if any(wanted.command is not None for wanted in plan.environments):
        return
    names = [name_in_algorithms(plan, number) for number in range(len(plan.environments))]
    places = trainer_settings(plan)[0].places
    for name in algorithms:
        if name in names:
            continue
        above = f"{KEY}.{name}"
        place = next((places[key] for key in places if key.startswith(f"{above}.")), above)
        yield (
            f"{place}: this run has no environment {name}{did_you_mean(name, names)} (there are:"
            f" {', '.join(names)})"
        )


def teaching_problems(plan: Plan) -> Iterator[str]:
    """Problems of the plan with its teachers, a sentence each."""
    cfg = trainer_settings(plan)[1]
    algorithms = algorithms_of(cfg)
    environments = []
    for number, wanted in enumerate(plan.environments):
        key = f"environments.{number}.config.env.teacher.base_url"
        named = (wanted.config.get("env") or {}).get("tokenizer_name")
        loss = algorithms.get(name_in_algorithms(plan, number), cfg)
        place = plan.places.get(key, key)
        environments.append(TaughtEnvironment(wanted, place, named or cfg.model_name, loss))
    return teacher_problems(plan.teachers, environments)


def evaluation_settings(plan: Plan, at: Endpoints) -> dict[str, Any]:
    """Settings of the trainer for evaluations; writes a file for each environment of the plan.

    Raises ConfigError: an environment is a command of the author's own.
    """
    _, served = trainer_settings(plan)
    settings: dict[str, Any] = {}
    if at.evaluation is not None:
        settings["eval_url"] = at.evaluation
    names = [environment_name(plan, number) for number in range(len(plan.environments))]
    entries = []
    for entry in served.eval_environments:
        name, _, flags = entry.partition(" ")
        if name in names:
            entry = _evaluation_entry(plan, served, names.index(name), at, flags)
        entries.append(entry)
    return {**settings, "eval_environments": entries} if entries else settings


def _evaluation_entry(
    plan: Plan, served: ServingSettings, number: int, at: Endpoints, flags: str
) -> str:
    """The words after ``atropos eval`` for an environment of the plan."""
    name, script = environment_name(plan, number), plan.environments[number].script
    if script is None:
        raise ConfigError(
            f"eval_environments: {name} is a command of its own; evaluate it by eval_command"
        )
    settings = environment_settings(plan, number, served, at)
    if at.evaluation is not None:  # an export is a whole model, also of an adapter
        settings["openai"]["model_name"] = plan.inference.model or served.model_name
    # Files and services of the environment that serves are its own.
    apart: dict[str, Any] = {
        "metrics_path": None,
        "samples_path": None,
        "use_wandb": False,
        "trackers": [],
    }
    if teacher_of(plan.environments[number]):
        apart["teacher"] = None  # nothing is sent, so nothing is judged
    settings["env"] = {**settings["env"], **apart}
    path = plan.launched / f"evaluation-{number}.yaml"
    write_yaml(path, settings)
    is_ready = script.endswith(".py") and not Path(script).is_file()
    words = [f"name={name}", Path(script).stem if is_ready else script]
    return " ".join((shlex.join([*words, "--config", str(path)]), flags)).strip()


def served_name(plan: Plan, served: ServingSettings) -> str:
    """Return the model name for requests: vLLM and SGLang select an adapter by name."""
    model = plan.inference.model or served.model_name
    engine = choose_engine(plan.inference.engine)
    name = served.publish_adapter_name
    if served.published_lora_rank is None or engine == "local" or name is None:
        return model
    return name if engine == "vllm" else f"{model}:{name}"


def trainer(
    plan: Plan,
    python: str,
    at: Endpoints,
    meet: str | None = None,
    run_id: str = "",
    gpus: str | None = None,
) -> Command:
    """Return the command: ``atropos-grpo``, or its ranks through torchrun.

    Args:
        gpus: CUDA_VISIBLE_DEVICES; None: all that its job sees.
        meet: host:port on the first of the plan's nodes; None: all ranks are on this node.
        run_id: the same on all nodes, and unique among the runs that meet there.
    """
    wiring: dict[str, Any] = {"atropos_url": at.api_address, "inference_urls": [DIRECTORY]}
    wiring["inference_min_ready"] = plan.inference.min_ready or plan.inference.count
    first, last = plan.launched / "wiring.yaml", plan.launched / "trainer.yaml"
    write_yaml(first, {**default_settings(plan), **wiring})
    write_yaml(last, {**plan.trainer.settings, **evaluation_settings(plan, at)})
    nodes, nproc = plan.trainer.nodes, str(plan.trainer.nproc)
    argv: tuple[str, ...] = (python, "-m")
    if meet is not None and nodes > 1:
        argv += (TORCHRUN, "--nnodes", str(nodes), "--nproc-per-node", nproc)
        argv += ("--rdzv-backend", "c10d", "--rdzv-endpoint", meet, "--rdzv-id", run_id, "-m")
    elif plan.trainer.nproc > 1:
        argv += (TORCHRUN, "--standalone", "--nproc-per-node", nproc, "-m")
    argv += ("example_trainer.grpo",)
    for path in (first, *plan.trainer.config, last):
        argv += ("--config", str(path))
    env = {**plan.trainer.env, end.VARIABLE: str(plan.end_record)}
    if trainer_settings(plan)[1].publisher != "shared_memory":
        # Passes differ in length, and fixed blocks of memory would leave gaps; a buffer that
        # another process opens cannot lie in that memory.
        env.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if gpus is not None:
        env.setdefault("CUDA_VISIBLE_DEVICES", gpus)
    return Command(argv, env)


def gpus_of(plan: Plan) -> dict[str, int]:
    """Return the GPUs that a node of a role needs; a role that is left out needs none."""
    trainer = trainer_settings(plan)[1].device != "cpu"
    return {
        "inference": gpus_of_server(plan.inference),
        "trainer": plan.trainer.nproc * trainer,
    }


def gpus_of_server(wanted: ServerSection) -> int:
    """Return the GPUs that a server of a job needs."""
    return wanted.tensor_parallel * (choose_engine(wanted.engine) != "local")


def write_yaml(path: Path, tree: Mapping[str, Any]) -> None:
    """Write JSON, which is YAML; several nodes may do so at once."""
    write_whole(path, json.dumps(tree, indent=2) + "\n")
