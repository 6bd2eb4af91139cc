"""Write CONFIG.md from the configuration models; `--check` only compares.

    python scripts/generate_config.py [--check]

A table per model: option, type, default, meaning. The models are the only source: a
wrong sentence in CONFIG.md is corrected in the model's Field. A model below another shows
what it adds or changes.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "CONFIG.md"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from generated import refresh  # noqa: E402


@dataclass(frozen=True)
class Section:
    title: str
    target: str  # "module:class"
    about: str
    below: str | None = None  # "module:class" whose options are not repeated
    parts: str | None = None  # "module:dict" of the models it is joined from: a table each


ENVIRONMENT = "atroposlib.envs.base:BaseEnvConfig"
SECTIONS = (
    Section(
        "Environment",
        ENVIRONMENT,
        "Command line: `--env.<option>`; YAML: under `env:`. "
        "An environment may add options of its own: `python environments/<name>.py serve --help`.",
    ),
    Section(
        "Curriculum of an environment",
        "atroposlib.envs.settings.curriculum_settings:CurriculumSettings",
        "YAML: under `env: curriculum:`; command line: `--env.curriculum` with a name or JSON.",
    ),
    Section(
        "Inference server, as an environment sees it",
        "atroposlib.envs.base:APIServerConfig",
        "Command line: `--openai.<option>`; YAML: a list under `openai:`, one entry a server.",
    ),
    Section(
        "Defaults for servers that are not listed one by one",
        "atroposlib.generation.configs:ServerBaseline",
        "In Python only: what `config_init` returns in place of a list of servers.",
    ),
    Section(
        "Server manager",
        "atroposlib.generation.configs:ServerManagerConfig",
        "Command line: `--<option>`, without a prefix: these apply to all servers together.",
    ),
    Section(
        "Thinking of hosted models",
        "atroposlib.generation.sampling.reasoning:ReasoningConfig",
        "Made from three options of the environment; naming an effort or a number of tokens "
        "switches it on.",
    ),
    Section(
        "Teacher distillation",
        "atroposlib.envs.teacher_distillation_env:TeacherDistillationConfig",
        "What `TeacherDistillationEnv` adds under `--env.`; the teacher's servers take the "
        "options of an inference server as `--teacher.<option>`, or under `teacher:`.",
        below=ENVIRONMENT,
    ),
    Section(
        "Environments that are functions",
        "atroposlib.envs.function_env.config:FunctionEnvConfig",
        "What `@environment` adds under `--env.`.",
        below=ENVIRONMENT,
    ),
    Section(
        "Trainer",
        "example_trainer.settings.config:TrainingConfig",
        "Command line of `atropos-grpo`: `--<option>` with dashes for underscores, or"
        " `<option>=<value>`; YAML: `--config FILE` with the same names, alone or below the"
        " name of their section. AReaL's names are understood as well:"
        " `example_trainer/settings/areal/names.py`.",
        parts="example_trainer.settings.files:SECTIONS",
    ),
    Section(
        "Launcher",
        "example_trainer.launch.plan:Plan",
        "The file of `atropos-launch local|slurm|k8s|ray --config FILE`; on its command line"
        " `<option>=<value>`, and any other key is the trainer's.",
        parts="example_trainer.launch.plan:SECTIONS",
    ),
)
# Options that the original Atropos has; a class that is not listed is not marked at all.
_BASELINE = frozenset(
    "timeout num_max_requests_at_once num_requests_for_eval model_name rolling_buffer_length "
    "server_type tokenizer_name".split()
)

ORIGINAL: dict[str, frozenset[str]] = {
    "atroposlib.envs.base:BaseEnvConfig": frozenset(
        "group_size max_num_workers max_eval_workers max_num_workers_per_node steps_per_eval "
        "max_token_length eval_handling eval_limit_ratio inference_weight batch_size "
        "max_batches_offpolicy tokenizer_name use_wandb rollout_server_url total_steps "
        "wandb_name num_rollouts_to_keep num_rollouts_per_group_for_logging "
        "ensure_scores_are_not_same data_path_to_save_groups data_dir_to_save_evals "
        "min_items_sent_before_logging include_messages min_batch_allocation worker_timeout "
        "thinking_mode reasoning_effort max_reasoning_tokens custom_thinking_prompt".split()
    ),
    "atroposlib.envs.base:APIServerConfig": _BASELINE
    | {"api_key", "base_url", "n_kwarg_is_ignored", "health_check"},
    "atroposlib.generation.configs:ServerBaseline": _BASELINE,
    "atroposlib.generation.configs:ServerManagerConfig": frozenset(
        ("slurm", "testing", "max_n_completions", "proxy_url")
    ),
    "example_trainer.settings.config:TrainingConfig": frozenset(
        "model_name lr training_steps batch_size seq_len gradient_accumulation_steps "
        "warmup_steps optimizer adafactor_scale_parameter adafactor_relative_step clip_eps "
        "device save_path checkpoint_interval vllm_restart_interval vllm_port vllm_gpu "
        "vllm_gpu_memory_utilization max_model_len dtype use_wandb wandb_project wandb_group "
        "weight_bridge_mode train_layer_indices trainer_rank world_size init_method "
        "num_inference_nodes lora_r lora_alpha lora_dropout lora_target_modules "
        "lora_layer_indices single_copy vllm_config_path debug_loading benchmark "
        "atropos_url".split()
    ),
}

# A dataclass has no place for sentences.
REASONING_MEANING = {
    "enabled": "ask the model to think; `env.thinking_mode`",
    "effort": "none, minimal, low, medium, high or xhigh; `env.reasoning_effort`",
    "max_tokens": "bound on the tokens of the thought; `env.max_reasoning_tokens`",
}
HEADER = """\
# Configuration

Every option of environments and trainer, its type and its default. Written by `make config`
from the models in the source; a test fails when this page is out of date. The other commands
explain themselves: `run-api --help`, `atropos-infer --help`, `atropos-quickstart --help`.
*New:* marks what the original Atropos does not have.

An environment takes each value from the first place that names it: command line, YAML file
(`--config FILE`), what `serve`, `process` or `evaluate` needs, the environment's
`config_init`, the default below.
"""


def load(target: str) -> Any:
    module, name = target.split(":")
    return getattr(import_module(module), name)


def page() -> str:
    parts = [HEADER]
    for section in SECTIONS:
        module, name = section.target.split(":")
        parts.append(f"\n## {section.title}\n\n`{module}.{name}`. {section.about}\n\n")
        if section.parts is None:
            parts += table(section)
        else:
            parts += joined_tables(section, load(section.parts))
    parts.append(
        "\n## Environments of this repository\n\n"
        "What each adds or changes; what it does stands in `environments/README.md`.\n"
    )
    for section in environment_sections():
        parts.append(f"\n### {section.title}\n\n")
        parts += table(section)
    return "".join(parts)


def environment_sections() -> Iterator[Section]:
    """A section per configuration class that a file of environments/ or an adapter defines."""
    base = load(ENVIRONMENT)
    adapters = sorted((ROOT / "atroposlib" / "adapters").glob("[!_]*.py"))
    for path in [*sorted((ROOT / "environments").glob("*.py")), *adapters]:
        module = import_module(f"atroposlib.{path.parent.name}.{path.stem}")
        for name, value in vars(module).items():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and issubclass(value, base):
                target = f"{module.__name__}:{name}"
                yield Section(f"`{path.name}`: {name}", target, "", below=ENVIRONMENT)


def joined_tables(section: Section, models: dict[str, Any]) -> list[str]:
    """A heading and a table for every model that the section's model is joined from."""
    known, lines = ORIGINAL.get(section.target), []
    for title, model in models.items():
        # A model that is alone in its file is described there, the rest by their docstring.
        about = (model.__doc__ or import_module(model.__module__).__doc__ or "").strip()
        about = about.split("\n")[0]
        lines.append(f"### {section.title}: {title}\n\n{about}\n\n")
        lines += rows(model.model_fields, known)
        lines.append("\n")
    return lines[:-1]


def table(section: Section) -> list[str]:
    fields = options(section)
    if not fields:
        return ["Nothing.\n"]
    return rows(fields, ORIGINAL.get(section.target))


def rows(fields: dict[str, FieldInfo], known: frozenset[str] | None) -> list[str]:
    return ["| option | type | default | meaning |\n|---|---|---|---|\n"] + [
        row(name, field, new=known is not None and name not in known)
        for name, field in fields.items()
    ]


def options(section: Section) -> dict[str, FieldInfo]:
    """The options of a section that differ from the model it is below."""
    model = load(section.target)
    if dataclasses.is_dataclass(model):
        hints = get_type_hints(model)
        return {
            field.name: FieldInfo(
                annotation=hints[field.name],
                default=field.default,
                description=REASONING_MEANING[field.name],
            )
            for field in dataclasses.fields(model)
        }
    above = load(section.below).model_fields if section.below else {}
    return {
        name: field
        for name, field in model.model_fields.items()
        if name not in above or default_text(field) != default_text(above[name])
    }


def row(name: str, field: FieldInfo, new: bool) -> str:
    meaning = " ".join((field.description or "").split())
    cells = (
        f"`{name}`",
        f"`{type_text(field.annotation)}`",
        default_text(field),
        f"*New:* {meaning}" if new else meaning,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def type_text(annotation: Any) -> str:
    """The annotation as a reader would write it, without module names."""
    if annotation is type(None):
        return "None"
    if annotation is Any:  # a class only from Python 3.11 on
        return "Any"
    if get_origin(annotation) is not None:
        arguments = [type_text(argument) for argument in get_args(annotation)]
        origin = get_origin(annotation)
        name = getattr(origin, "__name__", str(origin))
        if name in ("Union", "UnionType"):
            return " | ".join(arguments)
        if name == "Literal":
            return " | ".join(repr(value) for value in get_args(annotation))
        return f"{name}[{', '.join(arguments)}]"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " | ".join(repr(member.value) for member in annotation)
    if isinstance(annotation, type):
        return annotation.__name__
    return repr(annotation) if isinstance(annotation, str) else str(annotation)


def default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    factory = field.default_factory
    if factory in (dict, list, set, tuple):
        return f"`{field.get_default(call_default_factory=True)!r}`"
    if factory is not None:
        return "computed"  # depends on the machine or on chance: no text would stay true
    value = field.default
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, enum.Enum):
        value = value.value
    return f"`{value!r}`"


if __name__ == "__main__":
    stale = "CONFIG.md is not what the models say; run: make config"
    sys.exit(refresh(__doc__ or "", TARGET, lambda _: page(), stale))
