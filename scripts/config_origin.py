"""Which options the original Atropos has: CONFIG.md marks the others as new."""

from __future__ import annotations

_BASELINE = frozenset(
    "timeout num_max_requests_at_once num_requests_for_eval model_name rolling_buffer_length "
    "server_type tokenizer_name".split()
)

# "module:class" -> its options there; a class that is not listed is not marked at all.
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
