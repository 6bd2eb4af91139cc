"""AReaL's dotted names in terms of the settings here: one table, with values converted.

    Here        the option is a setting of the trainer, perhaps in another unit
    Part        several options say together what one setting says (a norm, a loss)
    Elsewhere   it belongs to another process or goes by itself: said once, then left out
    Refused     it does nothing in AReaL, or something that is wrong or not offered here

Names are translated, defaults are not: what a file leaves out has the default of CONFIG.md.
An option set to null counts as left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from example_trainer.settings.areal import values as groups


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Here:
    """A setting of ours; ``convert`` takes AReaL's value and may raise ConfigError."""

    field: str
    convert: Callable[[Any], Any] = same


@dataclass(frozen=True)
class Part:
    """A member of a group; ``group`` maps all members given to settings of ours.

    The member "" is the whole group set to null.
    """

    group: Callable[[Mapping[str, Any]], dict[str, Any]]
    name: str


@dataclass(frozen=True)
class Elsewhere:
    sentence: str


@dataclass(frozen=True)
class Refused:
    sentence: str


Meaning = Here | Part | Elsewhere | Refused

SERVER = Elsewhere(
    "options of the inference server: section inference of atropos-launch, or its own command"
)
SAMPLING = Elsewhere(
    "sampling belongs to the environments: --env.group_size, --env.max_token_length and what"
    " else each one's --help names"
)
DATASET = Elsewhere("data belong to the environments: see their --help")
ROLLOUT = Elsewhere("how rollouts are made belongs to the environments and their servers")
LAUNCHER = Elsewhere("where processes run is said to atropos-launch")
RENDEZVOUS = Elsewhere("the rollout API is where processes meet: no other registry is needed")
FILEROOT = Elsewhere("all of it goes below save_path (cluster.fileroot)")
ENGINE = Elsewhere("chosen by the trainer itself")
LOSS_SCALE = Refused("float16 only, and unused with FSDP in AReaL; leave it out")
DEAD = Refused("nothing reads it in AReaL; leave it out")
REFERENCE = Elsewhere("the reference model is loaded as the trained one is; ref.path names it")
OWN_TEMPERATURE = Elsewhere("the trainer takes each row's temperature from its environment")
GROUP_SIZE = Elsewhere("groups carry their own ids; group_size is the environments' business")

_ACTOR: dict[str, Meaning] = {
    "path": Here("model_name"),
    "init_from_scratch": Here("init_from_scratch"),
    "dtype": Here("dtype"),
    "gradient_checkpointing": Here("gradient_checkpointing"),
    "attn_impl": ENGINE,
    "pad_to_maximum": ENGINE,
    "grad_reduce_dtype": Elsewhere("gradients are always summed in float32"),
    "disable_dropout": Here("lora_dropout", groups.no_dropout),
    "is_critic": Elsewhere("--critic trains a value model beside the policy"),
    "backend": LAUNCHER,
    "ds_auto_tp": Refused("tensor parallelism in the trainer is not offered; FSDP2 shards"),
    "fsdp.wrap_policy": Elsewhere("every decoder layer is sharded on its own"),
    "fsdp.offload_params": Here("cpu_offload"),
    "use_lora": Here("lora"),
    "lora_rank": Here("lora_r"),
    "lora_alpha": Here("lora_alpha"),
    "target_modules": Here("lora_target_modules"),
    "peft_type": Elsewhere("the adapter is LoRA"),
    "weight_update_mode": Here("weight_publisher", groups.publisher),
    "weight_chunked_mem_mb": Here("publish_bucket_mb"),
    # optimizer
    "lr": Here("lr"),
    "optimizer.type": Here("optimizer", groups.optimizer),
    "optimizer.lr": Here("lr"),
    "optimizer.weight_decay": Here("weight_decay"),
    "optimizer.beta1": Here("adam_beta1"),
    "optimizer.beta2": Here("adam_beta2"),
    "optimizer.eps": Here("adam_eps"),
    "optimizer.min_lr_ratio": Here("min_lr_ratio"),
    "optimizer.lr_scheduler_type": Here("lr_schedule"),
    "optimizer.warmup_steps_proportion": Here("warmup_share"),
    "optimizer.gradient_clipping": Here("max_grad_norm"),
    "optimizer.offload": Refused("unused with FSDP in AReaL; fsdp.offload_params does it"),
    "optimizer.initial_loss_scale": LOSS_SCALE,
    "optimizer.min_loss_scale": LOSS_SCALE,
    "optimizer.loss_scale_window": LOSS_SCALE,
    "optimizer.hysteresis": LOSS_SCALE,
    # micro-batches
    "mb_spec.max_tokens_per_mb": Here("max_tokens_per_pass"),
    "mb_spec.n_mbs": Elsewhere("passes are cut by max_tokens_per_pass alone"),
    "mb_spec.granularity": Elsewhere("rows that share a prefix are kept together anyway"),
    "mb_spec.n_mbs_divisor": ENGINE,
    "mb_spec.packing_algorithm": ENGINE,
    # the loss
    "eps_clip": Here("clip_eps"),
    "eps_clip_higher": Here("clip_eps_high"),
    "c_clip": Here("dual_clip"),
    "recompute_logprob": Part(groups.loss, "recompute_logprob"),
    "use_decoupled_loss": Part(groups.loss, "use_decoupled_loss"),
    "importance_sampling_level": Part(groups.loss, "importance_sampling_level"),
    "use_sapo_loss": Part(groups.loss, "use_sapo_loss"),
    "m2_threshold": Part(groups.loss, "m2_threshold"),
    "sapo_tau_pos": Here("sapo_tau_positive"),
    "sapo_tau_neg": Here("sapo_tau_negative"),
    "behav_imp_weight_cap": Part(groups.importance, "behav_imp_weight_cap"),
    "rejection_sampling": Part(groups.importance, ""),
    **{
        f"rejection_sampling.{name}": Part(groups.importance, name)
        for name in ("level", "action", "metric", "agg", "upper", "lower")
    },
    "kl_ctl": Part(groups.kl, "kl_ctl"),
    "kl_estimator": Part(groups.kl, "kl_estimator"),
    "ppo_n_minibatches": Here("minibatches"),
    "temperature": OWN_TEMPERATURE,
    "mask_no_eos_with_zero": Here("mask_truncated"),
    # rewards and advantages
    "reward_bias": Here("reward_bias"),
    "reward_scaling": Here("reward_scale"),
    "reward_clip": Here("reward_clip"),
    "overlong_reward_penalty": Part(groups.overlong, "overlong_reward_penalty"),
    "overlong_tokens": Part(groups.overlong, "overlong_tokens"),
    "overlong_penalty_factor": Part(groups.overlong, "overlong_penalty_factor"),
    "max_new_tokens": Here("max_new_tokens"),
    "discount": Here("gamma"),
    "gae_lambda": Here("gae_lambda"),
    "dynamic_sampling": Here("dynamic_filter"),
    "group_size": GROUP_SIZE,
    "reward_norm": Part(groups.reward_norm, ""),
    "adv_norm": Part(groups.advantage_norm, ""),
    **{
        f"{norm}.{name}": Part(function, name)
        for norm, function in (
            ("reward_norm", groups.reward_norm),
            ("adv_norm", groups.advantage_norm),
        )
        for name in groups.NORM_OPTIONS
    },
    "log_agent_stats": Elsewhere("metrics of the environments are always logged, as env/*"),
    "log_agent_stats_keys": Elsewhere("metrics of the environments are always logged"),
}
_FREQUENCY = {"freq_epochs": "epochs", "freq_steps": "steps", "freq_secs": "s"}

NAMES: dict[str, Meaning] = {
    **{f"actor.{name}": meaning for name, meaning in _ACTOR.items()},
    "ref.path": Here("reference_model"),
    "critic.path": Here("critic_model"),
    "critic.optimizer.lr": Here("critic_lr"),
    "critic.value_eps_clip": Here("critic_clip_eps"),
    "critic.eps_clip": Here("critic_clip_eps"),
    # the run
    "experiment_name": Part(groups.run_name, "experiment_name"),
    "trial_name": Part(groups.run_name, "trial_name"),
    "cluster.fileroot": Here("save_path"),
    "total_train_steps": Here("training_steps"),
    "total_train_epochs": Elsewhere(
        "data belong to the environments, so training_steps says when the run ends and"
        " steps_per_epoch how many steps count as an epoch"
    ),
    "total_train_n_seqs": DEAD,
    "tokenizer_path": Elsewhere("the tokenizer lies in the model's directory"),
    "allocation_mode": LAUNCHER,
    "async_training": Part(groups.staleness, "async_training"),
    "rollout.max_head_offpolicyness": Part(groups.staleness, "max_head_offpolicyness"),
    "rollout.consumer_batch_size": Part(groups.batch, "prompts"),
    "train_dataset.batch_size": Part(groups.batch, "prompts"),
    "gconfig.n_samples": Part(groups.batch, "n_samples"),
    "saver.freq_epochs": Here("save_every_epochs"),
    "saver.freq_steps": Here("checkpoint_interval"),
    "saver.freq_secs": Here("save_every_s"),
    "saver.fileroot": Here("save_path"),
    "evaluator.eval_before_train": Here("eval_at_start"),
    "recover.mode": Here("recover_mode", groups.recover_mode),
    "recover.retries": Here("recover_retries"),
    **{f"evaluator.{name}": Here(f"eval_every_{unit}") for name, unit in _FREQUENCY.items()},
    **{f"recover.{name}": Here(f"recover_every_{unit}") for name, unit in _FREQUENCY.items()},
    "stats_logger.fileroot": Here("log_dir"),
    "stats_logger.wandb.project": Here("wandb_project"),
    "stats_logger.wandb.group": Here("wandb_group"),
    "stats_logger.wandb.name": Here("run_name"),
    "stats_logger.wandb.mode": Part(groups.trackers, "wandb"),
    "stats_logger.swanlab.mode": Part(groups.trackers, "swanlab"),
    "stats_logger.swanlab.project": Here("wandb_project"),
    "stats_logger.swanlab.name": Here("run_name"),
    "stats_logger.trackio.mode": Part(groups.trackers, "trackio"),
    "stats_logger.trackio.project": Here("wandb_project"),
    "stats_logger.trackio.name": Here("run_name"),
    "stats_logger.tensorboard.path": Part(groups.trackers, "tensorboard"),
}
# Where nothing above names an option; the longest beginning counts.
PREFIXES: dict[str, Meaning] = {
    "sglang.": SERVER,
    "vllm.": SERVER,
    "gconfig.": SAMPLING,
    "eval_gconfig.": SAMPLING,
    "train_dataset.": DATASET,
    "valid_dataset.": DATASET,
    "rollout.": ROLLOUT,
    "ref.": REFERENCE,
    "critic.": Elsewhere("the value model takes the optimizer settings of the policy"),
    "launcher.": LAUNCHER,
    "cluster.": LAUNCHER,
    "cluster.name_resolve.": RENDEZVOUS,
    "scheduler.": Refused(
        "nothing reads it in AReaL at the time of its reference, and here processes are"
        " placed by atropos-launch; leave it out"
    ),
    "saver.": FILEROOT,
    "evaluator.": FILEROOT,
    "recover.": FILEROOT,
    "stats_logger.": Elsewhere("trackers read the rest from their own environment variables"),
    "actor.megatron.": Refused("Megatron is not offered; the trainer shards by FSDP2"),
}


def meaning_of(key: str) -> Meaning | None:
    """What AReaL's ``key`` means here; None if AReaL has no such option either."""
    if key in NAMES:
        return NAMES[key]
    fitting = [prefix for prefix in PREFIXES if key.startswith(prefix)]
    return PREFIXES[max(fitting, key=len)] if fitting else None


def is_group(key: str) -> bool:
    """Whether AReaL has options below ``key``."""
    return any(name.startswith(key + ".") for name in (*NAMES, *PREFIXES))
