"""AReaL's dotted option names: a table to the settings of this trainer.

    Renamed      the option is a setting of the trainer, perhaps in another unit
    Combined     several options together are a setting (a norm, a loss)
    Ignored      it belongs to another process or has no effect here: noted once
    Unsupported  it is not offered here: refused unless null or false

What a whole file of AReaL's leaves out has AReaL's default where that decides the loss or the
update (``defaults``), else that of CONFIG.md. An option set to null counts as left out. The
default of AReaL's reference is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from example_trainer.settings.areal import values as groups


def same(value: Any) -> Any:
    return value


Group = Callable[[Mapping[str, Any]], dict[str, Any]]


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

    group: Group
    name: str


@dataclass(frozen=True)
class Ignored:
    reason: str


@dataclass(frozen=True)
class Unsupported:
    reason: str


Meaning = Renamed | Combined | Ignored | Unsupported
Meanings = dict[str, Meaning]

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


def members(group: Group, names: str) -> Meanings:
    return {name: Combined(group, name) for name in names.split()}


def whole_group(key: str, group: Group, names: str) -> Meanings:
    below = {f"{key}.{name}": meaning for name, meaning in members(group, names).items()}
    return {key: Combined(group, ""), **below}


def same_named(names: str) -> Meanings:
    return {name: Renamed(name) for name in names.split()}


_ACTOR: Meanings = {
    **members(groups.run_name, "experiment_name trial_name"),
    "path": Renamed("model_name"),
    **same_named("init_from_scratch dtype gradient_checkpointing"),
    **dict.fromkeys(("attn_impl", "pad_to_maximum", "use_kernels"), ENGINE),
    "grad_reduce_dtype": Ignored("gradients are always summed in float32"),
    "disable_dropout": Ignored("no part of the model has dropout here, as in the sampler"),
    "is_critic": Ignored("critic.path trains a value model with the policy"),
    **dict.fromkeys(("backend", "_version", "admin_api_key"), LAUNCHER),
    "ds_auto_tp": SHARDING,
    **dict.fromkeys(("enable_tree_training", "tree_training_mode"), PREFIXES_ONCE),
    **dict.fromkeys(("offload", "colocated", "colocated_weight_path"), OFFLOAD),
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
    **{f"optimizer.{name}": Renamed(f"adam_{name}") for name in ("beta1", "beta2", "eps")},
    "optimizer.min_lr_ratio": Renamed("min_lr_ratio"),
    "optimizer.lr_scheduler_type": Renamed("lr_schedule"),
    "optimizer.warmup_steps_proportion": Renamed("warmup_ratio"),
    "optimizer.gradient_clipping": Renamed("max_grad_norm"),
    "optimizer.offload": Unsupported("unused with FSDP in AReaL; fsdp.offload_params does it"),
    **{
        f"optimizer.{name}": LOSS_SCALE
        for name in ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")
    },
    # micro-batches
    "mb_spec.max_tokens_per_mb": Renamed("max_tokens_per_microbatch"),
    **{
        f"mb_spec.{name}": MICRO_BATCHES
        for name in ("n_mbs", "granularity", "n_mbs_divisor", "packing_algorithm")
    },
    "packing_algorithm": MICRO_BATCHES,
    # the loss
    "eps_clip": Renamed("clip_eps"),
    "eps_clip_higher": Renamed("clip_eps_high"),
    "c_clip": Renamed("dual_clip"),
    **members(
        groups.loss,
        "recompute_logprob use_decoupled_loss importance_sampling_level use_sapo_loss m2_threshold",
    ),
    "sapo_tau_pos": Renamed("sapo_tau_positive"),
    "sapo_tau_neg": Renamed("sapo_tau_negative"),
    **members(groups.loss, "behav_imp_weight_cap behave_imp_weight_mode"),
    "behave_imp_weight_cap": Combined(groups.loss, "behav_imp_weight_cap"),
    **whole_group("rejection_sampling", groups.loss, "level action metric agg upper lower"),
    **members(groups.kl, "kl_ctl kl_estimator"),
    "ppo_n_minibatches": Renamed("minibatches"),
    "temperature": OWN_TEMPERATURE,
    "prox_logp_method": Ignored("proximal logprobs are exact, and free with one minibatch"),
    "mask_no_eos_with_zero": Renamed("mask_truncated"),
    # rewards and advantages
    **same_named("reward_bias reward_clip max_new_tokens gae_lambda"),
    "reward_scaling": Renamed("reward_scale"),
    **members(
        groups.overlong, "overlong_reward_penalty overlong_tokens overlong_penalty_factor"
    ),
    "discount": Renamed("gamma"),
    "dynamic_sampling": Renamed("dynamic_filter"),
    "group_size": GROUP_SIZE,
    **whole_group("reward_norm", groups.reward_norm, groups.NORM_OPTIONS),
    **whole_group("adv_norm", groups.advantage_norm, groups.NORM_OPTIONS),
    **dict.fromkeys(("log_agent_stats", "log_agent_stats_keys"), AGENT_STATS),
}
_FREQUENCY = {"freq_epochs": "epochs", "freq_steps": "steps", "freq_secs": "s"}

NAMES: Meanings = {
    **{f"actor.{name}": meaning for name, meaning in _ACTOR.items()},
    "ref.path": Renamed("reference_model"),
    "critic.path": Combined(groups.reward_norm, "critic.path"),
    "critic.optimizer.lr": Renamed("critic_lr"),
    "critic.value_eps_clip": Renamed("critic_clip_eps"),
    "critic.eps_clip": Renamed("critic_clip_eps"),
    # the run
    **members(groups.run_name, "experiment_name trial_name"),
    "cluster.fileroot": Renamed("save_path"),
    "total_train_steps": Renamed("training_steps"),
    "total_train_epochs": Ignored(
        "training_steps ends the run; steps_per_epoch is how many steps count as an epoch"
    ),
    "total_train_n_seqs": Unsupported("nothing reads it in AReaL; leave it out"),
    "enable_offload": OFFLOAD,
    "dynamic_bs": Ignored("batches are always full: environments replace dropped groups"),
    **dict.fromkeys(("workflow", "eval_workflow"), WORKFLOW),
    "tokenizer_path": Ignored("the trainer takes the tokenizer of the model's directory"),
    "allocation_mode": LAUNCHER,
    "async_training": Combined(groups.staleness, "async_training"),
    "rollout.max_head_offpolicyness": Combined(groups.staleness, "max_head_offpolicyness"),
    "rollout.consumer_batch_size": Combined(groups.batch, "prompts"),
    "train_dataset.batch_size": Combined(groups.batch, "prompts"),
    "train_dataset.type": Combined(groups.loss, "type"),
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
    "rollout.use_lora": Ignored("servers serve the adapter that actor.use_lora trains"),
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
    "stats_logger.wandb.group": Renamed("wandb_group"),
    **{
        f"stats_logger.{tracker}.{name}": meaning
        for tracker in ("wandb", "swanlab", "trackio")
        for name, meaning in (
            ("mode", Combined(groups.trackers, tracker)),
            ("project", Renamed("wandb_project")),
            ("name", Renamed("run_name")),
        )
    },
    "stats_logger.tensorboard.path": Combined(groups.trackers, "tensorboard"),
}
# Where nothing above names an option; the longest beginning counts.
PREFIXES: Meanings = {
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
    """The meaning of AReaL's ``key``; None if AReaL has no option of that name."""
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
