"""Schema and reader of the YAML file of a run, checked before anything starts.

name: gsm8k
out: runs/gsm8k
inference: {engine: vllm, count: 2, tensor_parallel: 1}
environments:
  - script: environments/gsm8k_server.py
    config: {env: {group_size: 8}}
trainer:
  nproc: 2
  settings: {model_name: Qwen/Qwen2.5-1.5B-Instruct, lr: 1e-6}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from atroposlib.errors import ConfigError
from atroposlib.settings.fields import validate_as
from atroposlib.settings.merge import (
    Assignment,
    Settings,
    as_tree,
    assignments_of,
    merge,
    merge_dicts,
)
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.utils.command.run_folder import DATA_FOLDER
from example_trainer.launch.areal.options import is_areal, read_areal
from example_trainer.launch.clusters import KubernetesSection, RaySection
from example_trainer.launch.servers import choose_engine
from example_trainer.launch.teachers.section import InferenceSection, TeacherSection
from example_trainer.settings.args import settings_of_files
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.effect import idle_settings
from example_trainer.settings.environment_keys import in_environments
from example_trainer.settings.section import PlanSection
from example_trainer.state import end


class ApiSection(PlanSection):
    """The rollout API."""

    port: int = Field(0, ge=0, le=65535, description="0: any free one")
    data: str = Field(DATA_FOLDER, description="folder of its data, below out")
    args: list[str] = Field([], description="more arguments of run-api")
    env: dict[str, str] = Field({}, description="environment variables")


class EnvironmentSection(PlanSection):
    """Settings of an environment."""

    name: str | None = Field(None, description="of its log (default: the script's)")
    script: str | None = Field(
        None,
        description="a script with a serve command, or a ready one of environments/; gets the addresses",
    )
    command: list[str] | None = Field(
        None,
        description="any other program and its arguments; {api_url}, {inference_url},"
        " {inference_urls} (commas), {teachers.NAME}, {model}, {python} and {out} are filled in",
    )
    args: list[str] = Field([], description="more arguments of the script")
    config: dict[str, Any] = Field(
        {}, description="what the script's own YAML file would hold"
    )
    count: int = Field(1, ge=1, description="processes of this environment")
    env: dict[str, str] = Field({}, description="environment variables")

    @field_validator("config")
    @classmethod
    def _require_sections(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Raise ValueError for settings of the environment or its servers that are no mapping."""
        for name, kinds in (("env", dict), ("openai", dict | list)):
            if not isinstance(config.get(name), kinds | None):
                raise ValueError(f"{name} should be a mapping, not {config[name]!r}")
        teacher = (config.get("env") or {}).get("teacher")
        url = teacher.get("base_url") if isinstance(teacher, dict) else None
        urls = url if isinstance(url, list) else [url or ""]
        if not all(isinstance(word, str) for word in urls):
            raise ValueError(
                f"env.teacher.base_url should be text or a list of it, not {url!r}"
            )
        return config


class TrainerSection(PlanSection):
    """The trainer and its ranks."""

    config: list[str] = Field([], description="YAML files of settings, first")
    settings: dict[str, Any] = Field({}, description="settings, after the files")
    nproc: int = Field(1, ge=1, description="ranks on each node, through torchrun if not 1")
    nodes: int = Field(1, ge=1, description="nodes of a cluster")
    gpus: str | None = Field(
        None,
        description="CUDA_VISIBLE_DEVICES of a local trainer (default: those behind the servers')",
    )
    env: dict[str, str] = Field({}, description="environment variables")


SbatchOptions = dict[str, str | int | None]


DEFAULT_OPTIONS: dict[str, SbatchOptions] = {
    "api": {"cpus-per-task": 4, "mem": "16G"},
    "environments": {"cpus-per-task": 8},
    "trainer": {"exclusive": ""},
}


class SlurmSection(PlanSection):
    """Settings of SLURM: sbatch options as on its command line, without the dashes.

    An empty value is a bare option, null removes an option of the launcher's.
    """

    options: SbatchOptions = Field({}, description="of every job: partition, account ...")
    api: SbatchOptions = Field(DEFAULT_OPTIONS["api"], description="of the API's job")
    inference: SbatchOptions = Field({}, description="of each server's job")
    environments: SbatchOptions = Field(
        DEFAULT_OPTIONS["environments"], description="of each environment's job"
    )
    teachers: SbatchOptions = Field({}, description="of each teacher's job")
    trainer: SbatchOptions = Field(
        DEFAULT_OPTIONS["trainer"], description="of the trainer's job"
    )
    grace_s: int = Field(
        120,
        ge=0,
        description="seconds before its time limit at which a job ends its process and queues"
        " itself again; 0: never",
    )
    chain: int = Field(
        0,
        ge=0,
        description="further jobs of each part that start when the one before them ends, for"
        " clusters that forbid requeue",
    )
    servers_per_job: int = Field(
        1,
        ge=1,
        description="inference servers in one job, each on tensor_parallel of its GPUs",
    )
    setup: list[str] = Field([], description="shell lines that each job runs first")
    srun: list[str] = Field([], description="arguments of srun, such as --container-image=...")
    container: dict[str, list[str]] = Field(
        {},
        description="words in front of the command of a role (api, inference, teacher, environment,"
        " trainer), such as [apptainer, exec, --nv, a.sif]",
    )
    python: str = Field("python", description="interpreter on the nodes, after setup")
    wait_s: float = Field(3600.0, gt=0, description="bound of waiting for the other jobs")

    @field_validator(*DEFAULT_OPTIONS, mode="before")
    @classmethod
    def _over_the_defaults(cls, values: Any, info: ValidationInfo) -> Any:
        if not isinstance(values, dict):
            return values
        return {**DEFAULT_OPTIONS[str(info.field_name)], **values}


class Plan(PlanSection):
    """The whole plan of a run."""

    name: str = Field("atropos", pattern=r"^[\w.-]+$", description="of the run and its jobs")
    out: str = Field("runs/launch", description="logs, queue, checkpoints")
    store: str | None = Field(
        None,
        description="where the API keeps groups: postgresql://..., memory, or a folder of SQLite"
        " below out (default: api.data); ${NAME} is an environment variable",
    )
    api: ApiSection = Field(
        ApiSection.model_validate({}), description="section of the rollout API"
    )
    inference: InferenceSection = Field(
        InferenceSection.model_validate({}), description="section of the servers"
    )
    teachers: dict[str, TeacherSection] = Field(
        {},
        description="servers of fixed weights by name, such as {big: {model: Qwen/Qwen3-8B}}, for"
        " env.teacher: {base_url: big} of environments",
    )
    environments: list[EnvironmentSection] = Field(
        min_length=1, description="a list of environments"
    )
    trainer: TrainerSection = Field(
        TrainerSection.model_validate({}), description="section of the trainer"
    )
    slurm: SlurmSection = Field(
        SlurmSection.model_validate({}), description="section of the cluster's jobs"
    )
    k8s: KubernetesSection = Field(
        KubernetesSection.model_validate({}), description="section of the pods on Kubernetes"
    )
    ray: RaySection = Field(
        RaySection.model_validate({}), description="section of the actors on Ray"
    )
    sweep: Any = Field(
        None,
        description="a run for each combination: {lr: [1e-5, 2e-5], seed: [0, 1]}, or a list of"
        " combinations; keys as on the command line, each run in a folder below out",
    )
    restarts: int = Field(
        3,
        ge=0,
        description="times each process but the trainer is started again after it died",
    )
    restart_delay_s: float = Field(2.0, ge=0, description="before anything is started again")
    _notes: list[str] = PrivateAttr(default_factory=list)
    _places: dict[str, str] = PrivateAttr(default_factory=dict)
    _files: Path | None = PrivateAttr(None)

    @property
    def notes(self) -> list[str]:
        """Notes on keys of the file without effect, for all processes but the trainer."""
        return self._notes

    @property
    def places(self) -> dict[str, str]:
        """The place of each key in the files and on the command line."""
        return self._places

    @property
    def directory(self) -> Path:
        return Path(self.out).absolute()

    @property
    def launched(self) -> Path:
        """Directory of the files that the launcher writes for the processes."""
        return self.directory / "launch"

    @property
    def end_record(self) -> Path:
        """The file by which the trainer records the end of the run; see ``state.end``."""
        return self.launched / end.FILE

    @property
    def files(self) -> Path:
        """Directory of the plan as a file, with the token of its run."""
        return self._files or self.launched

    def read_from(self, path: Path) -> None:
        """Note the file that the plan was read from."""
        self._files = path.absolute().parent


SECTIONS: dict[str, type[BaseModel]] = {
    "run": Plan,
    "api": ApiSection,
    "inference": InferenceSection,
    "teachers": TeacherSection,
    "environments": EnvironmentSection,
    "trainer": TrainerSection,
    "slurm": SlurmSection,
    "k8s": KubernetesSection,
    "ray": RaySection,
}


TRAINER_SETTINGS = "trainer.settings."


def read_plan(
    files: Sequence[str],
    overrides: Sequence[Assignment] = (),
    environment: str | None = None,
    on_cluster: bool = False,
) -> Plan:
    """Read YAML files in order, then ``api.port=8000``; every further key is the trainer's.

    With a file of AReaL every key that is not of the plan is an option of AReaL; ``environment``
    is the file or name of the environment that asks the questions.

    Raises ConfigError with the key at fault.
    """
    sources = [read_yaml(path) for path in files]
    from_areal = any(is_areal(source.values) for source in sources)
    if environment is not None and not from_areal:
        raise ConfigError("--env goes with a file of AReaL; here environments.script names it")
    options: list[Assignment] = []
    for source in sources if from_areal else ():
        below = {key: source.values.pop(key) for key in [*source.values] if not is_own(key)}
        options += assignments_of(Settings(below, source.places))
    environments = _environments_of(sources)
    for override in overrides:
        if from_areal and not is_own(override.key):
            options.append(override)
            continue
        if is_own(override.key):
            override = in_environments(override, environments, EnvironmentSection.model_fields)
            key = override.key
        else:
            key = TRAINER_SETTINGS + override.key
        sources.append(Settings(as_tree({key: override.value}), {key: override.place}))
    if from_areal:
        sources.insert(0, _areal_source(options, sources, environment, on_cluster))
    merged = merge(*map(_with_flat_trainer_settings, sources), has_sections=True)
    named = ", ".join(files)
    plan = validate_as(Plan, merged, lambda key: f"{named}: {key}", _known_keys())
    for i, one_environment in enumerate(plan.environments):
        if (one_environment.script is None) == (one_environment.command is None):
            place = merged.place(f"environments.{i}")
            raise ConfigError(f"{place} needs either script or command")
    plan.notes.extend(merged.notes)
    plan.places.update(merged.places)
    return plan


def _environments_of(sources: Sequence[Settings]) -> list[dict[str, Any]]:
    """Sections of the environments in the files; empty where they are of another type."""
    sections = merge_dicts(*(source.values for source in sources)).get("environments")
    if isinstance(sections, list) and all(isinstance(entry, dict) for entry in sections):
        return sections
    return []


def is_own(key: str) -> bool:
    """Whether a key is the launcher's."""
    return key.partition(".")[0] in Plan.model_fields


def _with_flat_trainer_settings(source: Settings) -> Settings:
    """The source with the trainer's settings under names with dots, as the trainer takes them."""
    trainer = source.values.get("trainer")
    if not isinstance(trainer, Mapping) or not isinstance(trainer.get("settings"), Mapping):
        return source
    named = {entry.key: entry.value for entry in assignments_of(Settings(trainer["settings"]))}
    values = {**source.values, "trainer": {**trainer, "settings": named}}
    return replace(source, values=values)


def _known_keys() -> list[str]:
    below = [
        f"{head}.{name}"
        for head, model in SECTIONS.items()
        if head in Plan.model_fields
        for name in model.model_fields
    ]
    of_trainer = [TRAINER_SETTINGS + name for name in TrainingConfig.model_fields]
    return [*Plan.model_fields, *below, *of_trainer]


def _areal_source(
    options: Sequence[Assignment],
    own: Sequence[Settings],
    environment: str | None,
    on_cluster: bool,
) -> Settings:
    """The sections that AReaL's options make, for the launcher's ``own`` settings."""
    tree = merge(*own).values
    if "environments" in tree:
        raise ConfigError("environments: with a file of AReaL write --env, and env.NAME=VALUE")
    engine = (tree.get("inference") or {}).get("engine")
    made, notes = read_areal(
        options, environment, lambda wanted: choose_engine(engine or wanted), on_cluster
    )
    places = {f"{TRAINER_SETTINGS}{option.key}": option.place for option in options}
    return Settings(made, places, notes)


def trainer_settings(plan: Plan) -> tuple[Settings, TrainingConfig]:
    """Return the trainer's settings, validated here so that an error costs no start."""
    given = Settings({"trainer": {"settings": plan.trainer.settings}}, plan.places)
    defaults = default_settings(plan)
    settings = settings_of_files(
        plan.trainer.config,
        [
            replace(entry, key=entry.key.removeprefix(TRAINER_SETTINGS))
            for entry in assignments_of(given)
        ],
        [Assignment(key, defaults[key], f"the launcher: {key}") for key in defaults],
    )
    cfg = validate_as(TrainingConfig, settings, TRAINER_SETTINGS.__add__)
    names = settings.places.keys() - defaults.keys()
    idle = [f"{settings.place(name)}: {why}" for name, why in idle_settings(vars(cfg), names)]
    settings.notes = [
        *plan.notes,
        *settings.notes,
        *idle,
        *_idle_evaluations(plan, cfg.training_steps),
    ]
    return settings, cfg


def _idle_evaluations(plan: Plan, steps: int) -> Iterator[str]:
    """A note for each environment whose own evaluations begin after the last step."""
    for number, wanted in enumerate(plan.environments):
        every = (wanted.config.get("env") or {}).get("steps_per_eval")
        if isinstance(every, int) and every > steps:
            key = f"environments.{number}.config.env.steps_per_eval"
            yield (
                f"{plan.places.get(key, key)}: {every} is more than the {steps}"
                " steps of the run: no evaluation comes between its steps"
            )


def default_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings that files and overrides of the trainer may replace."""
    settings: dict[str, Any] = {"save_path": str(plan.directory / "checkpoints")}
    settings["log_dir"] = str(plan.directory)
    if choose_engine(plan.inference.engine) != "local":
        settings["publish_adapter_name"] = plan.name  # used only if LoRA is published
    return settings
