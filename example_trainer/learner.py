"""The trainer as a library: the trained models, and a step without a run.

    groups --training_rows--> rows --TrainedModels.prepare--> advantages --learn--> an optimizer step

``grpo`` puts a rollout API, servers and checkpoints around these; a :class:`Learner` takes groups of
any origin, in one process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.tokenizers.vocabulary import vocabulary_map
from atroposlib.wire import MASKED_LOGPROB, MAX_LOGPROB, ClaimedBatch, ScoredData
from atroposlib.wire.columns import from_group
from example_trainer import losses
from example_trainer.advantage.prepare import Prepared, prepare_parts
from example_trainer.advantage.roles import RoleBaselines
from example_trainer.data.rows import Row, TrainingBatch, at_trained, to_rows
from example_trainer.data.sampling import at_temperature, named_environment
from example_trainer.distributed.ranks import Ranks
from example_trainer.losses.teacher_fields import lacking_rows, taught_environments
from example_trainer.model import loading
from example_trainer.model.critic import load_value_model
from example_trainer.model.model_dir import TrainerState, save_adapter, save_model
from example_trainer.model.policy import Policy
from example_trainer.run.metrics_log import batch_metrics, warn_once
from example_trainer.settings.algorithms import Algorithm, algorithms_of
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.loss import ObjectiveSettings
from example_trainer.settings.plugins import require_plugins
from example_trainer.state import StopSignal
from example_trainer.update.optimizer import build_optimizer
from example_trainer.update.step import Critic, learn

UNROUTED = (
    "router_replay: rows without routed_experts are routed by the trainer itself. Set sampling of the"
    " environment's server to {'return_routed_experts': true}, and start vLLM or SGLang with"
    " --enable-return-routed-experts"
)


@dataclass
class TrainedModels:
    """The policy, its optimizer, and the models of the KL term and of the baseline."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    references: Mapping[str | None, Policy]  # keys: ``reference_model``
    critic: Critic | None
    baselines: RoleBaselines = field(
        default_factory=RoleBaselines
    )  # baselines of ``advantage: role``
    taught: set[str] = field(
        default_factory=set
    )  # environments that have sent a teacher's fields

    def prepare(
        self, rows: Sequence[Row], settings: ObjectiveSettings, version: int
    ) -> Prepared:
        """Rewards of rows to advantages, by these models.

        Raises ConfigError: a loss needs a teacher that an environment does not name.
        """
        prepared = prepare_parts(
            rows,
            settings,
            version,
            policy=self.policy,
            references=self.references,
            critic=self.critic.model if self.critic else None,
            baselines=self.baselines,
        )
        for lacking in lacking_rows(prepared.rows, settings, self.taught):
            prepared.counts["rows_without_teacher"] += lacking.rows
            if self.policy.world.is_rank0:
                warn_once(lacking.sentence)
        self.taught |= taught_environments(prepared.rows)
        return replace(prepared, metrics=self.baselines.metrics())


def load_models(cfg: TrainingConfig, world: Ranks) -> TrainedModels:
    """Load what the settings train; raises as :func:`loading.load_policy`."""
    policy = loading.load_policy(cfg, world)
    critic = None
    load = partial(loading.load_reference, cfg, world=world)
    references = load_references(cfg, policy, load)
    if cfg.critic:
        value_model = load_value_model(cfg, cfg.critic_model, world)
        own = cfg.model_copy(update={"lr": cfg.critic_lr})
        critic = Critic(value_model, build_optimizer(value_model, own), own)
    return TrainedModels(policy, build_optimizer(policy, cfg), references, critic)


def load_references(
    settings: ObjectiveSettings, policy: Policy, load: Callable[[str | None], Policy]
) -> dict[str | None, Policy]:
    """The frozen models of the KL terms by ``reference_model``, which environments may name.

    Raises ConfigError: the token ids of a model differ from the policy's.
    """
    entries: tuple[ObjectiveSettings, ...] = (settings, *algorithms_of(settings).values())
    names = dict.fromkeys(entry.reference_model for entry in entries if entry.kl_coef > 0)
    references = {name: load(name) for name in names}
    for name, reference in references.items():
        pair = ("the policy", f"of reference_model {name}")
        ids = vocabulary_map(policy.tokenizer, reference.tokenizer, pair)
        if not ids.has_equal_ids:
            raise ConfigError(
                f"reference_model {name}: its token ids differ from the policy's; use a model of the"
                " same family, or a teacher on a server (env.teacher), whose ids are translated"
            )
    return references


def training_rows(
    groups: Sequence[ScoredData],
    settings: ObjectiveSettings,
    policy: Policy,
    state: TrainerState,
) -> TrainingBatch:
    """Rows of the groups of a batch; warns of what is missing in the rows."""
    own = algorithms_of(settings)
    own_G = [own.get(named_environment(group) or "", settings) for group in groups]
    batch = to_rows(
        [
            at_temperature(group, its.temperature) if isinstance(its, Algorithm) else group
            for group, its in zip(groups, own_G)
        ],
        policy.max_tokens_per_row,
        needs_sampler=[
            losses.needs_sampler(its.loss) or its.kl_bias_correction for its in own_G
        ],
        unknown_temperature=settings.unknown_temperature,
        incarnation=state.incarnation,
        starts=state.starts,
        read_pictures=policy.pictures.inputs if policy.pictures else None,
    )
    require_known_tokens(batch.rows, policy.vocab_size)
    require_known_candidates(batch.rows, policy.vocab_size)
    replays = policy.module.replay is not None
    if replays and not all(row.routed_experts for row in batch.rows if row.trained):
        batch.notes.add(UNROUTED)
    for note in sorted(batch.notes) if policy.world.is_rank0 else ():
        warn_once(note)
    return batch


def require_known_tokens(rows: Sequence[Row], vocab_size: int) -> None:
    """Raise InvalidGroup for a token that the policy has no logit for."""
    for row in rows:
        if (largest := max(row.tokens)) >= vocab_size:
            problem = f"token {largest} is beyond the {vocab_size} tokens of the policy: sample with it"
            raise InvalidGroup("tokens", row.place_in_errors, problem)


def require_known_candidates(rows: Sequence[Row], vocab_size: int) -> None:
    """Raise InvalidGroup for a teacher's token that the policy has no logit for, or for no logprob."""
    for row in rows:
        if problem := candidate_problem(row, vocab_size):
            raise InvalidGroup("distill_token_ids", f" of group {row.group}", problem)


def candidate_problem(row: Row, vocab_size: int) -> str | None:
    """Why the tokens of a teacher cannot be used at the trained tokens of a row."""
    largest = max((max(ids) for ids in row.teacher_ids or () if ids), default=0)
    if largest >= vocab_size:
        return (
            f"token {largest} of the teacher is beyond the {vocab_size} tokens of the policy:"
            " leave such tokens out (env.teacher does), or use a teacher of its vocabulary"
        )
    ids_T = at_trained(row, row.teacher_ids) if row.teacher_ids else []
    smallest = min((min(ids) for ids in ids_T if ids), default=0)
    if smallest < 0:
        return f"token {smallest} of the teacher is no token: leave such entries out"
    logprobs_T = at_trained(row, row.teacher_logprobs) if row.teacher_logprobs else []
    for value in (max(logprobs) for logprobs in logprobs_T if logprobs):
        if value > MAX_LOGPROB and value != MASKED_LOGPROB:
            return f"distill_logprobs has {value:g}, which is no logprob: it is 0 or less"
    return None


class Learner:
    """A policy that learns from scored groups of any origin, in this process.

    Example: learner = Learner(TrainingConfig(model_name="models/smol", device="cpu"))

    Raises:
        ConfigError: a plug-in or the model of the settings cannot be used.
    """

    def __init__(self, cfg: TrainingConfig) -> None:
        require_plugins(cfg)
        torch.manual_seed(cfg.seed)
        random.seed(cfg.seed)
        self.cfg = cfg
        self.models = load_models(
            cfg, replace(Ranks.single(), device=torch.device(cfg.device))
        )
        self.state = TrainerState("", step=0, version=0, batch_no=None)

    @property
    def policy(self) -> Policy:
        """The trained model (``policy.model``, of transformers) and its ``tokenizer``."""
        return self.models.policy

    def step(self, groups: Sequence[ScoredData]) -> dict[str, Any]:
        """Train on the groups as on a batch of a run; return the metrics of the step.

        ``training_steps`` is the length of the learning rate's schedule.

        Raises:
            InvalidGroup: a group cannot be trained on; names the field.
        """
        for group in groups:
            from_group(group)  # raises what the rollout API would refuse
        cfg, models, state = self.cfg, self.models, self.state
        batch = training_rows(groups, cfg, models.policy, state)
        prepared = models.prepare(batch.rows, cfg, state.version)
        learned = learn(
            cfg, models.policy, models.optimizer, prepared, state, StopSignal(), models.critic
        )
        claimed = ClaimedBatch(batch_no=state.step + 1, batch=list(groups))
        metrics = batch_metrics(claimed, batch, prepared, state.version)
        number = state.step + 1
        self.state = replace(state, step=number, version=number, batch_no=number)
        return {"step": number, **metrics, **learned}

    def save(self, directory: str | Path) -> Path:
        """Write the model, or the adapter, with its tokenizer; return the directory."""
        save = save_adapter if self.cfg.trains_adapter else save_model
        return save(self.policy, Path(directory), self.state)
