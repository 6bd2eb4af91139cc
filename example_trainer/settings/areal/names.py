"""AReaL's dotted option names: one table to the settings of this trainer.

    Renamed      the option is a setting of the trainer, perhaps in another unit
    Combined     several options together are one setting (a norm, a loss)
    Ignored      it belongs to another process or has no effect here: noted once
    Unsupported  it is not offered here: refused unless null or false

Names are translated, defaults are not: what a file leaves out has the default of CONFIG.md.
An option set to null counts as left out. The default of AReaL's reference is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from example_trainer.settings.areal import values as groups


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Renamed:
    """A setting of this trainer; ``convert`` takes AReaL's value and may raise ConfigError."""

    field: str
    convert: Callable[[Any], Any] = same


@dataclass(frozen=True)
class Combined:
    """A member of a group; ``group`` maps all given members to settings.

    The member "" is the whole group set to null.
    """

    group: Callable[[Mapping[str, Any]], dict[str, Any]]
    name: str


@dataclass(frozen=True)
class Ignored:
    reason: str


@dataclass(frozen=True)
class Unsupported:
    reason: str


Meaning = Renamed | Combined | Ignored | Unsupported

SERVER = Ignored("options of the inference server, for atropos-launch or its own command")
ENVIRONMENTS = Ignored(
    "no settings of the trainer: atropos-launch passes them on to environments and servers,"
    " if they have the like"
)
LAUNCHER = Ignored("atropos-launch places the processes")
MEETING = Ignored("the processes meet at the rollout API and need no service of names")
SCHEDULER = Ignored("`atropos-launch local` or `slurm` says where; environments reward")
NO_LOADER = Ignored("environments hold their tasks in memory and need no loader of batches")
WORKFLOW = Ignored("an environment plays its part: --env of atropos-launch")
RUN_NAME = Ignored("the names at the top are those of all parts of the run")
FILEROOT = Ignored("all of it goes below save_path (cluster.fileroot), named by run_name")
ENGINE = Ignored("chosen by the trainer itself")
SHARDING = Ignored("the trainer shards every decoder layer by FSDP2; no other engine is used")
OFFLOAD = Ignored("the trainer shares no GPU; actor.fsdp.offload_params moves it to the CPU")
LOSS_SCALE = Ignored("float16 only, unused with FSDP in AReaL too")
MICRO_BATCHES = Ignored("cut by max_tokens_per_microbatch, rows with a common prefix together")
PREFIXES_ONCE = Ignored("share_prefixes, on by default, computes common prefixes once")
AGENT_STATS = Ignored("metrics of the environments are always logged, as env/*")
REFERENCE = Ignored("the reference model is loaded as the trained one is; ref.path names it")
OWN_TEMPERATURE = Ignored("the trainer takes each row's temperature from its environment")
MEASURED = Ignored("seconds_* and memory of each step are always in the metrics")
SUPERVISED = Ignored("the model of SFT or a reward model: atropos-sft and atropos-rm train it")
GROUP_SIZE = Ignored("groups carry their own ids; group_size is the environments' business")

_ACTOR: dict[str, Meaning] = {
    "experiment_name": Combined(groups.run_name, "experiment_name"),
    "trial_name": Combined(groups.run_name, "trial_name"),
    "path": Renamed("model_name"),
    "init_from_scratch": Renamed("init_from_scratch"),
    "dtype": Renamed("dtype"),
    "gradient_checkpointing": Renamed("gradient_checkpointing"),
    "attn_impl": ENGINE,
    "pad_to_maximum": ENGINE,
    "grad_reduce_dtype": Ignored("gradients are always summed in float32"),
    "disable_dropout": Combined(groups.dropout, "disable_dropout"),
    "is_critic": Ignored("critic.path trains a value model with the policy"),
    "backend": LAUNCHER,
    "ds_auto_tp": SHARDING,
    "enable_tree_training": PREFIXES_ONCE,
    "tree_training_mode": PREFIXES_ONCE,
    "packing_algorithm": MICRO_BATCHES,
    "use_kernels": ENGINE,
    "offload": OFFLOAD,
    "colocated": OFFLOAD,
    "colocated_weight_path": OFFLOAD,
    "_version": LAUNCHER,
    "admin_api_key": LAUNCHER,
    "fsdp.offload_params": Renamed("cpu_offload"),
    "use_lora": Renamed("lora"),
    "lora_rank": Renamed("lora_r"),
    "lora_alpha": Renamed("lora_alpha"),
    "target_modules": Renamed("lora_target_modules"),
    "peft_type": Ignored("the adapter is LoRA"),
    "weight_update_mode": Renamed("weight_publisher", groups.publisher),
    "weight_chunked_mem_mb": Renamed("publish_bucket_mb"),
    # optimizer
    "lr": Renamed("lr"),
    "optimizer.type": Renamed("optimizer", groups.optimizer),
    "optimizer.lr": Renamed("lr"),
    "optimizer.weight_decay": Renamed("weight_decay"),
    "optimizer.beta1": Renamed("adam_beta1"),
    "optimizer.beta2": Renamed("adam_beta2"),
    "optimizer.eps": Renamed("adam_eps"),
    "optimizer.min_lr_ratio": Renamed("min_lr_ratio"),
    "optimizer.lr_scheduler_type": Renamed("lr_schedule"),
    "optimizer.warmup_steps_proportion": Renamed("warmup_ratio"),
    "optimizer.gradient_clipping": Renamed("max_grad_norm"),
    "optimizer.offload": Unsupported("unused with FSDP in AReaL; fsdp.offload_params does it"),
    "optimizer.initial_loss_scale": LOSS_SCALE,
    "optimizer.min_loss_scale": LOSS_SCALE,
    "optimizer.loss_scale_window": LOSS_SCALE,
    "optimizer.hysteresis": LOSS_SCALE,
    # micro-batches
    "mb_spec.max_tokens_per_mb": Renamed("max_tokens_per_microbatch"),
    "mb_spec.n_mbs": MICRO_BATCHES,
    "mb_spec.granularity": MICRO_BATCHES,
    "mb_spec.n_mbs_divisor": MICRO_BATCHES,
    "mb_spec.packing_algorithm": MICRO_BATCHES,
    # the loss
    "eps_clip": Renamed("clip_eps"),
    "eps_clip_higher": Renamed("clip_eps_high"),
    "c_clip": Renamed("dual_clip"),
    "recompute_logprob": Combined(groups.loss, "recompute_logprob"),
    "use_decoupled_loss": Combined(groups.loss, "use_decoupled_loss"),
    "importance_sampling_level": Combined(groups.loss, "importance_sampling_level"),
    "use_sapo_loss": Combined(groups.loss, "use_sapo_loss"),
    "m2_threshold": Combined(groups.loss, "m2_threshold"),
    "sapo_tau_pos": Renamed("sapo_tau_positive"),
    "sapo_tau_neg": Renamed("sapo_tau_negative"),
    "behav_imp_weight_cap": Combined(groups.importance, "behav_imp_weight_cap"),
    "behave_imp_weight_cap": Combined(groups.importance, "behav_imp_weight_cap"),
    "behave_imp_weight_mode": Combined(groups.importance, "behave_imp_weight_mode"),
    "rejection_sampling": Combined(groups.importance, ""),
    **{
        f"rejection_sampling.{name}": Combined(groups.importance, name)
        for name in ("level", "action", "metric", "agg", "upper", "lower")
    },
    "kl_ctl": Combined(groups.kl, "kl_ctl"),
    "kl_estimator": Combined(groups.kl, "kl_estimator"),
    "ppo_n_minibatches": Renamed("minibatches"),
    "temperature": OWN_TEMPERATURE,
    "prox_logp_method": Ignored("proximal logprobs are exact, and free with one minibatch"),
    "mask_no_eos_with_zero": Renamed("mask_truncated"),
    # rewards and advantages
    "reward_bias": Renamed("reward_bias"),
    "reward_scaling": Renamed("reward_scale"),
    "reward_clip": Renamed("reward_clip"),
    "overlong_reward_penalty": Combined(groups.overlong, "overlong_reward_penalty"),
    "overlong_tokens": Combined(groups.overlong, "overlong_tokens"),
    "overlong_penalty_factor": Combined(groups.overlong, "overlong_penalty_factor"),
    "max_new_tokens": Renamed("max_new_tokens"),
    "discount": Renamed("gamma"),
    "gae_lambda": Renamed("gae_lambda"),
    "dynamic_sampling": Renamed("dynamic_filter"),
    "group_size": GROUP_SIZE,
    "reward_norm": Combined(groups.reward_norm, ""),
    "adv_norm": Combined(groups.advantage_norm, ""),
    **{
        f"{norm}.{name}": Combined(function, name)
        for norm, function in (
            ("reward_norm", groups.reward_norm),
            ("adv_norm", groups.advantage_norm),
        )
        for name in groups.NORM_OPTIONS
    },
    "log_agent_stats": AGENT_STATS,
    "log_agent_stats_keys": AGENT_STATS,
}
_FREQUENCY = {"freq_epochs": "epochs", "freq_steps": "steps", "freq_secs": "s"}

NAMES: dict[str, Meaning] = {
    **{f"actor.{name}": meaning for name, meaning in _ACTOR.items()},
    "ref.path": Renamed("reference_model"),
    "critic.path": Combined(groups.reward_norm, "critic.path"),
    "critic.optimizer.lr": Renamed("critic_lr"),
    "critic.value_eps_clip": Renamed("critic_clip_eps"),
    "critic.eps_clip": Renamed("critic_clip_eps"),
    # the run
    "experiment_name": Combined(groups.run_name, "experiment_name"),
    "trial_name": Combined(groups.run_name, "trial_name"),
    "cluster.fileroot": Renamed("save_path"),
    "total_train_steps": Renamed("training_steps"),
    "total_train_epochs": Ignored(
        "training_steps ends the run; steps_per_epoch is how many steps count as an epoch"
    ),
    "total_train_n_seqs": Unsupported("nothing reads it in AReaL; leave it out"),
    "enable_offload": OFFLOAD,
    "dynamic_bs": Ignored("batches are always full: environments replace dropped groups"),
    "workflow": WORKFLOW,
    "eval_workflow": WORKFLOW,
    "tokenizer_path": Ignored("the trainer takes the tokenizer of the model's directory"),
    "allocation_mode": LAUNCHER,
    "async_training": Combined(groups.staleness, "async_training"),
    "rollout.max_head_offpolicyness": Combined(groups.staleness, "max_head_offpolicyness"),
    "rollout.consumer_batch_size": Combined(groups.batch, "prompts"),
    "train_dataset.batch_size": Combined(groups.batch, "prompts"),
    "gconfig.n_samples": Combined(groups.batch, "n_samples"),
    "saver.freq_epochs": Renamed("save_every_epochs"),
    "saver.freq_steps": Renamed("checkpoint_interval"),
    "saver.freq_secs": Renamed("save_every_s"),
    "saver.fileroot": Renamed("save_path"),
    "evaluator.eval_before_train": Renamed("eval_at_start"),
    **{
        f"{section}.{name}": NO_LOADER
        for section in ("train_dataset", "valid_dataset")
        for name in ("pin_memory", "num_workers", "drop_last")
    },
    "rollout.queue_size": Ignored("--env.max_batches_offpolicy bounds the queue, in batches"),
    "rollout.enable_rollout_tracing": Ignored("--log-level debug logs every group"),
    "rollout.check_trajectory_format": Ignored("the rollout API checks every group"),
    "rollout.schedule_policy": Ignored("a rollout goes to the server with most free slots"),
    "rollout.request_retries": Ignored("a request has three attempts, then another server"),
    "recover.mode": Renamed("recover_mode", groups.recover_mode),
    "recover.retries": Renamed("recover_retries"),
    **{
        f"{section}.{name}": Renamed(f"{ours}_every_{unit}")
        for section, ours in (("evaluator", "eval"), ("recover", "recover"))
        for name, unit in _FREQUENCY.items()
    },
    "stats_logger.fileroot": Renamed("log_dir"),
    "stats_logger.wandb.project": Renamed("wandb_project"),
    "stats_logger.wandb.group": Renamed("wandb_group"),
    "stats_logger.wandb.name": Renamed("run_name"),
    "stats_logger.wandb.mode": Combined(groups.trackers, "wandb"),
    "stats_logger.swanlab.mode": Combined(groups.trackers, "swanlab"),
    "stats_logger.swanlab.project": Renamed("wandb_project"),
    "stats_logger.swanlab.name": Renamed("run_name"),
    "stats_logger.trackio.mode": Combined(groups.trackers, "trackio"),
    "stats_logger.trackio.project": Renamed("wandb_project"),
    "stats_logger.trackio.name": Renamed("run_name"),
    "stats_logger.tensorboard.path": Combined(groups.trackers, "tensorboard"),
}
# Where nothing above names an option; the longest beginning counts.
PREFIXES: dict[str, Meaning] = {
    "sglang.": SERVER,
    "vllm.": SERVER,
    "gconfig.": ENVIRONMENTS,
    "eval_gconfig.": ENVIRONMENTS,
    "train_dataset.": ENVIRONMENTS,
    "valid_dataset.": ENVIRONMENTS,
    "rollout.": ENVIRONMENTS,
    "ref.": REFERENCE,
    "critic.": Ignored("the value model takes the optimizer settings of the policy"),
    "launcher.": LAUNCHER,
    "cluster.": LAUNCHER,
    "cluster.name_resolve.": MEETING,
    "scheduler.": SCHEDULER,
    "perf_tracer.": MEASURED,
    "memory_profiler.": MEASURED,
    "teacher.": Unsupported("environments ask the teacher (--teacher.*); see distill_coef"),
    "saver.": FILEROOT,
    "evaluator.": FILEROOT,
    "recover.": FILEROOT,
    "stats_logger.": Ignored("trackers read the rest from their own environment variables"),
    **dict.fromkeys(("actor.fsdp.", "actor.megatron.", "actor.archon."), SHARDING),
    "actor.ds_auto_tp.": SHARDING,
    "actor.scheduling_": LAUNCHER,
}


def meaning_of(key: str) -> Meaning | None:
    """The meaning of AReaL's ``key``; None if AReaL has no such option."""
    section, _, option = key.partition(".")
    if key in NAMES:
        return NAMES[key]
    if section == "model" and option in _ACTOR:
        return SUPERVISED
    fitting = [prefix for prefix in PREFIXES if key.startswith(prefix)]
    if fitting and option in ("experiment_name", "trial_name"):
        return RUN_NAME
    return PREFIXES[max(fitting, key=len)] if fitting else None


def is_group(key: str) -> bool:
    """Whether AReaL has options below ``key``."""
    return any(name.startswith(key + ".") for name in (*NAMES, *PREFIXES))
