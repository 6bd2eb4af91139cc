"""``BaseEnvConfig``: every setting of an environment, with its unit and its default.

Each field is also the flag ``--env.<field>`` and the key ``env: <field>`` of a YAML file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from atroposlib.envs.settings.aliases import keys_of_aliases
from atroposlib.envs.settings.curriculum_settings import CurriculumSettings
from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.settings.sentences import did_you_mean
from atroposlib.trackers import TrackerName, known_trackers, tracker_names
from atroposlib.utils.backoff import Backoff

logger = logging.getLogger(__name__)

# Namespaces of the settings: --env.group_size, --openai.base_url.
ENV_NAMESPACE = "env"
OPENAI_NAMESPACE = "openai"
SERVER_MANAGER_NAMESPACE = "server"
NAMESPACE_SEP = "."
SLOT = "_atropos"  # the only attribute of an environment that is not its author's: its runtime

STATUS_POLL_S = 0.1  # period of status requests to the rollout API
HEARTBEAT_S = 2.0  # period of heartbeats
MAX_BACK_OFF_S = 10.0  # longest pause between rollouts while all rollouts fail
# Pauses between rollouts while all fail; no pause up to a failure per worker.
FAILING_BACKOFF = Backoff(initial_s=0.2, max_s=MAX_BACK_OFF_S)


class EvalHandlingEnum(str, Enum):
    """Policy for training rollouts during an evaluation."""

    STOP_TRAIN = "STOP_TRAIN"  # start no rollouts; running rollouts finish
    LIMIT_TRAIN = "LIMIT_TRAIN"  # use at most eval_limit_ratio of the workers
    NONE = "NONE"  # no change


# Names of version 0.2.0 -> current names. Flags, YAML files and code may use the old names.
NEW_NAMES = {
    "api_give_up_after": "api_timeout_s",
    "trainer_wait": "trainer_timeout_s",
    "drain_timeout": "drain_timeout_s",
    "final_weights_wait": "final_weights_timeout_s",
}


def with_new_names(values: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
    """A copy of ``values`` with current setting names; each replacement is logged.

    The current name wins if both are present. ``namespace`` is the prefix of all names.
    """
    renamed = dict(values)
    for old, new in NEW_NAMES.items():
        if namespace + old in renamed:
            logger.warning("setting %s is deprecated: write %s", old, new)
            value = renamed.pop(namespace + old)
            renamed.setdefault(namespace + new, value)
    return renamed


class BaseEnvConfig(BaseModel):
    """Settings every environment has; subclass it to add your own.

    A field with an alias is read under both names. The run sets sizes and steps also in a
    frozen configuration.

    Example: BaseEnvConfig(group_size=8, tokenizer_name="models/smol", total_steps=40)
    """

    model_config = ConfigDict(populate_by_name=True, loc_by_alias=False)

    group_size: int = Field(
        default=4, ge=1, description="responses to one prompt, scored together"
    )
    max_num_workers: int = Field(
        default=-1,
        description="maximum concurrent rollouts; -1: max_num_workers_per_node x servers",
    )
    max_eval_workers: int = Field(
        default=16, ge=1, description="maximum concurrent evaluation samples"
    )
    max_num_workers_per_node: int = Field(default=8, ge=1, description="rollouts per server")
    steps_per_eval: int = Field(
        default=100, description="trainer steps between evaluations; <=0: none"
    )
    max_token_length: int = Field(
        default=2048,
        ge=1,
        description="maximum tokens of a sequence, registered at the rollout API",
    )
    eval_handling: EvalHandlingEnum = Field(
        default=EvalHandlingEnum.STOP_TRAIN,
        description="training rollouts during an evaluation",
    )
    eval_limit_ratio: float = Field(
        default=0.5, ge=0, le=1, description="share of the workers left under LIMIT_TRAIN"
    )
    inference_weight: float = Field(
        default=1.0, description="share of inference among environments; -1: not counted"
    )
    batch_size: int = Field(default=-1, description="sequences per batch; the trainer's wins")
    max_batches_offpolicy: int = Field(
        default=3, description="batches generated ahead of the trainer; <=0: no bound"
    )
    tokenizer_name: str = Field(
        default="NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="directory or hub name of the tokenizer of the trained model",
    )
    use_wandb: bool = Field(
        default=True, description="log to Weights & Biases if it is installed"
    )
    # A part of the type, because a subclass may give the name another one: see ``readable``.
    trackers: Annotated[list[TrackerName | str], AfterValidator(known_trackers)] = Field(
        default=[],
        description="serve, process: where metrics go besides the log and metrics_path",
    )
    log_dir: str = Field(default="./logs", description="directory of tensorboard's files")
    rollout_server_url: str = Field(
        default="http://localhost:8000",
        description="address of the rollout API, or file:///path of a file that holds it",
    )
    total_steps: int = Field(
        default=1000,
        description="serve: trainer steps, -1: those of the trainer; process: groups",
    )
    wandb_name: str | None = Field(
        default=None, description="name of this environment in a run; None: the class's name"
    )
    num_rollouts_to_keep: int = Field(
        default=32, ge=0, description="rollouts kept for the table"
    )
    num_rollouts_per_group_for_logging: int = Field(
        default=1, ge=-1, description="rollouts of each group in the table; -1: all"
    )
    ensure_scores_are_not_same: bool = Field(
        default=True, description="drop groups whose scores are all equal"
    )
    data_path_to_save_groups: str | None = Field(
        default=None,
        description="jsonl file of every kept group; an existing one is not overwritten",
    )
    data_dir_to_save_evals: str | None = Field(
        default=None, description="directory of eval results"
    )
    journal_gb: float = Field(
        default=1.0,
        ge=0,
        description="serve: bound of the journal of finished samples, in GB; 0: no journal",
    )
    journal_dir: str | None = Field(
        default=None,
        description="serve: folder of the journal; None: env_journal in the trainer's folder",
    )
    min_items_sent_before_logging: int = Field(
        default=2, description="groups sent before metrics are logged; <=0: log at every step"
    )
    include_messages: bool = Field(default=False, description="send the text with the tokens")
    images_once: bool = Field(
        default=False,
        description="send a picture once per group, and its digest with the other rows",
    )
    min_batch_allocation: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of each batch that this environment must fill",
    )
    worker_timeout: float = Field(
        default=600.0, description="seconds after which a rollout is given up; <=0: never"
    )
    context_full_score: float | None = Field(
        default=None,
        description="score of a rollout that filled the model's context before it ended; None: "
        "of a function the floor of its card, else 0",
    )
    teacher: TeacherSettings | None = Field(
        default=None,
        description="a model on a server whose logprobs go with every group, for the losses"
        " reverse_kl, distillation and jsd; as YAML {base_url: http://localhost:9010/v1, top_k: 16}",
    )
    thinking_mode: bool = Field(
        default=False, description="request reasoning before the answer"
    )
    reasoning_effort: str | None = Field(
        default=None, description="none, minimal, low, medium, high or xhigh"
    )
    max_reasoning_tokens: int | None = Field(default=None, description="1024..32000 tokens")
    custom_thinking_prompt: str | None = Field(
        default=None, description="system prompt that requests reasoning"
    )

    metrics_path: str | None = Field(
        default=None, description="jsonl file of this run's metrics"
    )
    samples_path: str | None = Field(
        default=None,
        description="jsonl file to which evaluated samples are appended, with their step",
    )
    seed: int = Field(default=0, description="seed of item order and data splits")
    curriculum: CurriculumSettings = Field(
        default=CurriculumSettings(),
        description="sampler of tasks and gate of groups: a name, or JSON",
    )
    eval_at_start: bool = Field(
        default=False, description="serve: evaluate before the first rollout"
    )
    eval_at_end: bool = Field(default=False, description="serve: evaluate the final weights")
    max_item_retries: int = Field(
        default=2, ge=0, description="retries of an item whose rollout failed"
    )
    max_failures_in_a_row: int = Field(
        default=64,
        ge=1,
        description="items in a row that failed or lost their group after which the run stops",
    )
    api_timeout_s: float = Field(
        default=1200.0, gt=0, description="seconds to wait for an unreachable rollout API"
    )
    trainer_timeout_s: float = Field(
        default=86_400.0,
        gt=0,
        description="seconds to wait for a trainer that has not started",
    )
    drain_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="seconds for running sends to finish when the run stops",
    )
    final_weights_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="seconds that the last evaluation waits for the final weights",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = with_new_names(values)
        # A warning only: old environments pass fields that no longer exist. Of flags an unknown
        # name is an error (cli.py): there a typing error is likely.
        if cls.model_config.get("extra") != "allow":
            for name in values.keys() - cls.model_fields.keys() - keys_of_aliases(cls):
                hint = did_you_mean(name, cls.model_fields)
                warnings.warn(f"{cls.__name__} has no field {name!r}{hint}", stacklevel=3)
        return values

    @property
    def tracker_names(self) -> list[str]:
        """The trackers that are chosen, by ``use_wandb`` too."""
        return tracker_names(self.trackers, self.use_wandb)

    def __getattr__(self, name: str) -> Any:
        # Released environments read the old names, which are not fields.
        if name in NEW_NAMES:
            return getattr(self, NEW_NAMES[name])
        return super().__getattr__(name)  # type: ignore[misc]  # defined for the run time only

    def __setattr__(self, name: str, value: Any) -> None:
        name = NEW_NAMES.get(name, name)
        if name in BaseEnvConfig.model_fields and _is_frozen(type(self), name):
            vars(self)[name] = value  # the trainer's sizes and steps
        else:
            super().__setattr__(name, value)


def _is_frozen(kind: type[BaseModel], name: str) -> bool:
    field = kind.model_fields.get(name)
    return bool(kind.model_config.get("frozen") or field is not None and field.frozen)
