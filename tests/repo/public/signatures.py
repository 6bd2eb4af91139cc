"""How the public names of the original are called, as far as its documents give a form.

``SIGNATURES`` is the whole list: a target and its parameters as one writes them. Names, places
and defaults are those of the original; the names in ``OURS`` are not. A parameter may be added
behind those of the table if it has a default.
"""

from __future__ import annotations

from tests.repo.public.surface import SERVERS

REWARD_FNS = "atroposlib.envs.reward_fns"
# target -> parameters as one writes them; (): may be called without any.
SIGNATURES = {
    # --- environments
    "atroposlib.envs.base:BaseEnv": "config, server_configs, slurm=False, testing=False",
    "atroposlib.envs.base:BaseEnv.config_init": "",
    "atroposlib.envs.base:BaseEnv.setup": "self",
    "atroposlib.envs.base:BaseEnv.get_next_item": "self",
    "atroposlib.envs.base:BaseEnv.collect_trajectory": "self, item",
    "atroposlib.envs.base:BaseEnv.collect_trajectories": "self, item",
    "atroposlib.envs.base:BaseEnv.postprocess_histories": "self, trajectories",
    "atroposlib.envs.base:BaseEnv.evaluate": "self, *args, **kwargs",
    "atroposlib.envs.base:BaseEnv.wandb_log": "self, wandb_metrics=None",
    "atroposlib.envs.base:BaseEnv.save_checkpoint": "self, step, data=None",
    "atroposlib.envs.base:BaseEnv.load_checkpoint": "self",
    "atroposlib.envs.base:BaseEnv.cleanup": "self",
    "atroposlib.envs.base:BaseEnv.add_rollouts_for_wandb": "self, scored_data, item=None",
    "atroposlib.envs.base:BaseEnv.create_rollout_table": "self, wandb_metrics",
    "atroposlib.envs.base:BaseEnv.perf_stats": "self, metrics_dict",
    "atroposlib.envs.base:BaseEnv.setup_wandb": "self",
    "atroposlib.envs.base:BaseEnv.register_env": "self",
    "atroposlib.envs.base:BaseEnv.get_server_info": "self",
    "atroposlib.envs.base:BaseEnv.get_status": "self",
    "atroposlib.envs.base:BaseEnv.handle_env": "self, item_uuid",
    "atroposlib.envs.base:BaseEnv.env_step_checks": "self",
    "atroposlib.envs.base:BaseEnv.add_train_workers": "self",
    "atroposlib.envs.base:BaseEnv.handle_send_to_api": (
        "self, scored_data, item=None, do_send_to_api=True, "
        "abort_on_any_max_length_exceeded=True"
    ),
    "atroposlib.envs.base:BaseEnv.evaluate_log": (
        "self, metrics, task_name=None, model_name=None, start_time=None, end_time=None, "
        "generation_parameters=None, samples=None, verbose=True"
    ),
    "atroposlib.envs.base:BaseEnv.env_manager": "self",
    "atroposlib.envs.base:BaseEnv.process_manager": "self",
    "atroposlib.envs.base:BaseEnv.cli": "",
    "atroposlib.envs.base:BaseEnv.get_cli_serve_config_cls": "",
    "atroposlib.envs.base:BaseEnv.get_cli_process_config_cls": "",
    "atroposlib.envs.base:BaseEnv.get_cli_evaluate_config_cls": "",
    "atroposlib.envs.teacher_distillation_env:TeacherDistillationEnv": (
        "config, server_configs, teacher_server_configs=None, slurm=False, testing=False"
    ),
    "atroposlib.envs.teacher_distillation_env:TeacherDistillationEnv.teacher_config_init": "",
    "atroposlib.envs.eval:EvalBase": "pass_at_n=1, pass_at_n_samples=1, **kwargs",
    "atroposlib.envs.eval:EvalBase.run_item": "self, server, data_item",
    "atroposlib.envs.eval:EvalBase.chat_completion": "self, server, messages",
    "atroposlib.envs.eval:eval_runner": "eval_env",
    "atroposlib.envs.eval:EvalBase.setup_data": "self",
    "atroposlib.envs.eval:EvalBase.eval": "self, server_manager",
    "atroposlib.envs.eval:EvalBase.get_generation_params": "self",
    "atroposlib.envs.eval:evaluate_log": (
        "metrics, eval_dir=None, task_name=None, model_name=None, start_time=None, "
        "end_time=None, generation_parameters=None, samples=None, verbose=True"
    ),
    "atroposlib.envs.eval:pass_at_k": "m, c, k",
    # --- inference servers
    f"{SERVERS}.server_baseline:APIServer": "config, reasoning_config=None",
    f"{SERVERS}.server_baseline:APIServer.chat_completion": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer.completion": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer.tokens_and_logprobs_completion": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer.get_logprobs": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer.update_weight": "self, weight",
    f"{SERVERS}.server_baseline:APIServer.wandb_metrics": "self, metrics_dict, server_name",
    f"{SERVERS}.server_baseline:APIServer.check_server_status_task": (
        "self, chat_completion=True"
    ),
    f"{SERVERS}.server_baseline:APIServer._chat_completion_wrapper": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer._completion_wrapper": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer._tokens_and_logprobs_completion_wrapper": (
        "self, **kwargs"
    ),
    f"{SERVERS}.server_baseline:APIServer._get_logprobs_wrapper": "self, **kwargs",
    f"{SERVERS}.server_baseline:APIServer._inject_reasoning_kwargs": "self, kwargs",
    f"{SERVERS}.server_baseline:AsyncSemWithAdaptiveWeight": "value",
    f"{SERVERS}.server_baseline:AsyncSemWithAdaptiveWeight.update_weight": "self, weight",
    f"{SERVERS}.server_baseline:AsyncSemWithAdaptiveWeight.min_val": "self",
    f"{SERVERS}.server_baseline:ReasoningConfig": "enabled=False, effort=None, max_tokens=None",
    f"{SERVERS}.server_baseline:ReasoningConfig.from_env_config": "env_config",
    f"{SERVERS}.server_baseline:ReasoningConfig.is_reasoning_kwargs_active": "self",
    f"{SERVERS}.server_baseline:ReasoningConfig.build_extra_body": (
        "self, base_url=None, use_max_tokens=False"
    ),
    f"{SERVERS}.server_manager:ServerManager": (
        "configs, server_class=APIServer, slurm=False, testing=False, max_n_completions=8, "
        "reasoning_config=None, proxy_url=None, use_proxy=False, tool_parser=None"
    ),
    f"{SERVERS}.server_manager:ServerManager.chat_completion": "self, **kwargs",
    f"{SERVERS}.server_manager:ServerManager.completion": "self, **kwargs",
    f"{SERVERS}.server_manager:ServerManager.tokens_and_logprobs_completion": "self, **kwargs",
    f"{SERVERS}.server_manager:ServerManager.get_logprobs": "self, **kwargs",
    f"{SERVERS}.server_manager:ServerManager.dedicated_server": "self",
    f"{SERVERS}.server_manager:ServerManager.managed_server": (
        "self, tokenizer=None, base_url=None, preserve_think_blocks=False"
    ),
    f"{SERVERS}.server_manager:ServerManager.wait_for_sem": "self, is_training",
    f"{SERVERS}.server_manager:ServerManager.update_weight": "self, weight",
    f"{SERVERS}.server_manager:ServerManager.wandb_metrics": (
        "self, metrics_dict=None, server_name=None"
    ),
    f"{SERVERS}.server_harness:create_chat_completion": "resp, n=1, finish_reason='stop'",
    f"{SERVERS}.server_harness:create_completion": "resp, n=1, finish_reason='stop'",
    f"{SERVERS}.server_harness:ServerHarness.set_desired_response": "self, input_message, desired_response",
    f"{SERVERS}.server_harness:ServerHarness.set_desired_completion": "self, input_message, completion",
    f"{SERVERS}.server_harness:ServerHarness.set_tokens_and_logprobs_response": (
        "self, prompt, prompt_tokens, output_tokens_list, output_logprobs_list, finish_reasons"
    ),
    f"{SERVERS}.managed_server:ManagedServer": (
        "server, tokenizer=None, track_tree=False, tool_parser=None, "
        "preserve_think_blocks=False"
    ),
    f"{SERVERS}.managed_server:ManagedServer.chat_completion": "self, **kwargs",
    f"{SERVERS}.managed_server:ManagedServer.completion": "self, **kwargs",
    f"{SERVERS}.managed_server:ManagedServer.get_logprobs": "self, **kwargs",
    f"{SERVERS}.managed_server:ManagedServer.get_state": "self",
    f"{SERVERS}.managed_server:ManagedServer.reset": "self",
    f"{SERVERS}.managed_server:DummyManagedServer": (
        "server, tokenizer=None, track_tree=False"
    ),
    f"{SERVERS}.managed_server:ManagedServerAdapter": "managed_server, base_url",
    f"{SERVERS}.tool_call_translator:ToolCallTranslator": "tokenizer, parser_name='hermes'",
    f"{SERVERS}.managed_server_proxy:create_app": (
        "server_manager, tokenizer, model_name='unknown'"
    ),
    f"{SERVERS}.proxy_client:ProxyManagedServer": (
        "proxy_url, session_uuid, model_name, base_url"
    ),
    f"{SERVERS}.proxy_client:ProxyManagedServer.chat_completion": "self, **kwargs",
    f"{SERVERS}.proxy_client:ProxyManagedServer.fetch_state": "self",
    f"{SERVERS}.proxy_client:ProxyManagedServer.get_state": "self",
    f"{SERVERS}.proxy_client:ProxyManagedServer.get_url": "self",
    f"{SERVERS}.proxy_client:ProxyManagedServer.reset": "self",
    f"{SERVERS}.proxy_client:ProxyManagedServer.cleanup": "self",
    f"{SERVERS}.proxy_client:create_proxy_session": (
        "proxy_url, base_url=None, tool_parser='hermes', track_tree=False, "
        "model_name='unknown'"
    ),
    # --- kinds of servers: constructors as that of APIServer
    **{
        f"{SERVERS}.{module}": "config, reasoning_config=None"
        for module in (
            "openai_server:OpenAIServer",
            "sglang_server:SGLangServer",
            "trl_vllm_server:TrlVllmServer",
            "vllm_server:VLLMServer",
        )
    },
    **{
        f"{SERVERS}.{module}:resolve_openai_configs": (
            "default_server_configs, openai_config_dict, yaml_config, cli_passed_flags, logger"
        )
        for module in ("openai_server", "sglang_server", "trl_vllm_server", "vllm_server")
    },
    f"{SERVERS}.server_harness:ServerHarness": "config",
    f"{SERVERS}.server_baseline:AsyncSemWithAdaptiveWeight.acquire": "self",
    f"{SERVERS}.server_baseline:AsyncSemWithAdaptiveWeight.release": "self",
    f"{SERVERS}.managed_server:DummyManagedServer.chat_completion": "self, **kwargs",
    f"{SERVERS}.managed_server:DummyManagedServer.completion": "self, **kwargs",
    f"{SERVERS}.managed_server:DummyManagedServer.get_logprobs": "self, **kwargs",
    f"{SERVERS}.managed_server:DummyManagedServer.get_state": "self",
    f"{SERVERS}.managed_server:DummyManagedServer.reset": "self",
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.parse_model_output": (
        "self, raw_text, tool_choice, tools"
    ),
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.reconstruct_raw_text_from_tool_calls": (
        "self, tool_calls"
    ),
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.convert_messages_for_template": (
        "self, messages"
    ),
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.decode_with_tool_awareness": (
        "self, token_ids, has_tools=False"
    ),
    f"{SERVERS}.proxy_client:ProxyManagedServer.completion": "self, **kwargs",
    f"{SERVERS}.managed_server_proxy:main": "",
    # --- utilities
    "atroposlib.utils.tokenize_for_trainer:tokenize_for_trainer": (
        "tokenizer, chat, include_messages=False, train_on_all_assistant_turns=False, "
        "finish_reason=''"
    ),
    "atroposlib.utils.advantages:allclose_to_first": (
        "values, rtol=1e-05, atol=1e-08, equal_nan=False, return_vector=False"
    ),
    "atroposlib.utils.advantages:compute_stats": "data",
    "atroposlib.utils.advantages:compute_discounted_returns": "rewards, gamma",
    "atroposlib.utils.advantages:compute_grpo_process_supervision_advantages": (
        "rewards, gamma=None, std_tol=1e-08"
    ),
    "atroposlib.utils.tool_call_parser:extract_tool_call": "text, preferred_tags=None",
    "atroposlib.utils.tool_call_parser:parse_tool_call": (
        "response, available_tools=None, preferred_tags=None"
    ),
    "atroposlib.utils.message_history_utils:strip_thinking": "response_text",
    "atroposlib.utils.message_history_utils:truncate_thinking": (
        "response_text, tokenizer, max_think_tokens"
    ),
    "atroposlib.utils.message_history_utils:ensure_trajectory_token_limit": (
        "trajectory, tokenizer, max_trajectory_tokens"
    ),
    "atroposlib.utils.best_of_n_selection:select_best_index": (
        "primary_scores, secondary_scores, primary_higher_is_better=True, secondary_lower_is_better=True"
    ),
    "atroposlib.utils.force_diverse_samples:generate_with_diverse_first_tokens": (
        "self, messages, prefill='', n=8, max_tokens=4096, temperature=1.0"
    ),
    "atroposlib.utils.display:display_metrics_table": (
        "task_name, metrics, start_time, end_time"
    ),
    "atroposlib.utils.io:parse_http_response": "resp, logger=None",
    "atroposlib.utils.metrics:get_std_min_max_avg": "name, data, metrics_dict",
    "atroposlib.utils.cli:get_prefixed_pydantic_model": "base_model, prefix",
    "atroposlib.utils.cli:merge_dicts": "*dicts",
    "atroposlib.utils.cli:extract_namespace": "source, prefix",
    "atroposlib.utils.cli:adjust_model_defaults": "model_class, defaults",
    "atroposlib.utils.cli:get_double_dash_flags": "",
    "atroposlib.utils.tokenizers.qwen_fixed_tokenizer:QwenFixedTokenizer": "model_name_or_path, **kwargs",
    "atroposlib.frontend.jsonl2html:generate_html": "input_path, output_path=None",
    "atroposlib.frontend.jsonl2html:create_html_for_group": "group_data, index",
    "atroposlib.frontend.jsonl2html:get_score_class": "score",
    "atroposlib.api.utils:find_groups_summing_to_target": "buffer, target_size",
    "atroposlib.api.utils:grab_exact_from_heterogeneous_queue": "queue, batch_size",
    "atroposlib.api.utils:grab_batch_with_minimum_allocations": (
        "queue, batch_size, env_configs"
    ),
    "helpers.length_penalties:ThresholdLengthPenaltyConfig": (
        "max_token_length, threshold_percentage=0.5"
    ),
    "helpers.length_penalties:ThresholdLengthPenaltyCalculator": "config",
    "helpers.length_penalties:ThresholdLengthPenaltyCalculator.apply_length_penalties": (
        "self, scores"
    ),
    # --- rewards
    f"{REWARD_FNS}:RewardFunction": "weight=1.0, name=None, **kwargs",
    f"{REWARD_FNS}:RewardFunction.compute": "self, completions, **kwargs",
    f"{REWARD_FNS}:RewardFunction.__call__": "self, completions, **kwargs",
    f"{REWARD_FNS}:RewardFunction.get_content": "completion",
    f"{REWARD_FNS}:CombinedReward": "rewards, normalization='none', **kwargs",
    f"{REWARD_FNS}:registry.register": "name=None",
    f"{REWARD_FNS}:RewardFunction.log_metrics": "self, raw_rewards, weighted_rewards",
    f"{REWARD_FNS}.registry:LegacyFunctionWrapper": "func, weight=1.0, name=None, **kwargs",
    f"{REWARD_FNS}:registry.register_function": "name, function",
    f"{REWARD_FNS}:registry.create": "name_or_config, **defaults",
    f"{REWARD_FNS}:registry.get": "name",
    f"{REWARD_FNS}:registry.list_registered": "",
    f"{REWARD_FNS}:registry.load_required_functions": "config",
    f"{REWARD_FNS}.accuracy_reward:AccuracyReward": (
        "tolerance=1e-06, split_on_think_tag=True, max_boxed_threshold=6, **kwargs"
    ),
    f"{REWARD_FNS}.format_reward:FormatReward": (
        "preferred_tags=None, require_all_tags=False, case_sensitive=False, **kwargs"
    ),
    f"{REWARD_FNS}.reasoning_steps_reward:ReasoningStepsReward": (
        "min_words=10, min_steps=3, base_score=0.1, pattern_weights=None, **kwargs"
    ),
    f"{REWARD_FNS}.repetition_penalty_reward:RepetitionPenaltyReward": (
        "threshold=0.05, min_words=10, min_sentences=2, short_text_penalty=-0.1, "
        "paragraph_repetition_base_penalty=-0.6, component_weights=None, stopwords=None, **kwargs"
    ),
    f"{REWARD_FNS}.cosine_scaled_reward:CosineScaledReward": (
        "model_name='sentence-transformers/all-MiniLM-L6-v2', scale_factor=1.0, "
        "min_reward=-1.0, max_reward=1.0, default_reward=0.0, **kwargs"
    ),
    f"{REWARD_FNS}.crossword_format_reward:CrosswordFormatReward": (
        "format_patterns=None, reward_value=1.0, penalize_invalid_chars=True, **kwargs"
    ),
    f"{REWARD_FNS}.format_reasoning_reward:FormatReasoningReward": (
        "reward_value=0.5, require_thinking=True, require_response=True, "
        "allow_multiple_thinking=False, **kwargs"
    ),
    f"{REWARD_FNS}.accuracy_x_reward:AccuracyXReward": (
        "exact_match=False, case_sensitive=False, reward_value=1.0, **kwargs"
    ),
    f"{REWARD_FNS}.r1_reward:R1Reward": "format_weight=0.5, accuracy_weight=1.0, **kwargs",
    f"{REWARD_FNS}.chandas_meter_reward:ChandasMeterReward": "meter='tristubh', **kwargs",
    **{
        f"{REWARD_FNS}.{name}_reward:{name}_reward": "completions, *columns, **kwargs"
        for name in (
            *("accuracy", "accuracy_x", "chandas_meter", "cosine_scaled", "crossword_format"),
            *("format", "format_reasoning", "r1", "reasoning_steps", "repetition_penalty"),
        )
    },
    f"{REWARD_FNS}.cascading_r1_math_reward:cascading_r1_math_reward": "completions, solution",
    # --- commands, and what the trainer's package exports
    **{
        f"atroposlib.cli.{module}:main": ""
        for module in (
            *("run_api", "sft", "dpo", "view_run", "view_run_multimodal"),
            "inference_node_wandb_watcher",
        )
    },
    **{
        f"example_trainer:{name}": "config"
        for name in ("train_legacy", "train_lora", "train_lora_restart", "train_shared_vllm")
    },
    "example_trainer:parse_args": "",
    "example_trainer:config_from_args": "args",
}
# Our names: the documents of the original describe these parameters, without their names.
# They are promised by position only.
OURS = {
    "atroposlib.envs.base:BaseEnv.postprocess_histories",
    "atroposlib.envs.base:BaseEnv.add_rollouts_for_wandb",
    "atroposlib.utils.display:display_metrics_table",
    "atroposlib.frontend.jsonl2html:get_score_class",
    f"{REWARD_FNS}:RewardFunction.get_content",
    f"{REWARD_FNS}:registry.register_function",
    f"{SERVERS}.server_manager:ServerManager.wait_for_sem",
    f"{SERVERS}.server_baseline:AsyncSemWithAdaptiveWeight.update_weight",
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.parse_model_output",
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.reconstruct_raw_text_from_tool_calls",
    f"{SERVERS}.tool_call_translator:ToolCallTranslator.decode_with_tool_awareness",
}
