"""The names other people's environments and trainers import, and keep importing.

A thing that moves leaves a face at its old path. A name leaves this table only with a major
version and a line in the changelog. How they are called stands in test_public_surface.py.
"""

from __future__ import annotations

from importlib import import_module

import pytest

SERVERS = "atroposlib.envs.server_handling"
PUBLIC = {
    "atroposlib.envs": "BaseEnv BaseEnvConfig environment",
    "atroposlib.envs.base": (
        "APIServer APIServerConfig BaseEnv BaseEnvConfig EvalHandlingEnum Item OpenaiConfig "
        "ScoredDataGroup ScoredDataItem ServerBaseline ServerManager ServerManagerConfig"
    ),
    "atroposlib.envs.constants": (
        "ENV_NAMESPACE NAMESPACE_SEP OPENAI_NAMESPACE SERVER_MANAGER_NAMESPACE"
    ),
    "atroposlib.envs.eval": "EvalBase eval_runner evaluate_log pass_at_k",
    "atroposlib.envs.reward_fns": "CombinedReward RewardFunction registry",
    "atroposlib.envs.teacher_distillation_env": (
        "TeacherDistillationConfig TeacherDistillationEnv"
    ),
    f"{SERVERS}.managed_server": (
        "DummyManagedServer ManagedServer ManagedServerAdapter SequenceNode"
    ),
    f"{SERVERS}.managed_server_proxy": "create_app main",
    f"{SERVERS}.openai_server": (
        "APIServerConfig OpenAIServer OpenaiConfig resolve_openai_configs"
    ),
    f"{SERVERS}.proxy_client": "ProxyManagedServer create_proxy_session",
    f"{SERVERS}.server_baseline": (
        "APIServer APIServerConfig AsyncSemWithAdaptiveWeight ReasoningConfig ServerBaseline "
        "VALID_REASONING_EFFORTS"
    ),
    f"{SERVERS}.server_harness": "ServerHarness create_chat_completion create_completion",
    f"{SERVERS}.server_manager": (
        "APIServer APIServerConfig ServerBaseline ServerManager ServerManagerConfig"
    ),
    f"{SERVERS}.sglang_server": "SGLangServer resolve_openai_configs",
    f"{SERVERS}.tool_call_translator": "ToolCallTranslator VLLM_AVAILABLE",
    f"{SERVERS}.trl_vllm_server": "TrlVllmServer resolve_openai_configs",
    f"{SERVERS}.vllm_server": "VLLMServer resolve_openai_configs",
    "atroposlib.type_definitions": (
        "AgentHistory AgentStep Content EvaluationConfigGeneral EvaluationMetrics "
        "EvaluationResults EvaluationSample GameHistory GameStep Item Message Observation "
        "UUID number"
    ),
    "atroposlib.utils.advantages": (
        "allclose_to_first compute_discounted_returns "
        "compute_grpo_process_supervision_advantages compute_stats"
    ),
    "atroposlib.utils.best_of_n_selection": "select_best_index",
    "atroposlib.utils.cli": (
        "adjust_model_defaults extract_namespace get_double_dash_flags "
        "get_prefixed_pydantic_model merge_dicts"
    ),
    "atroposlib.utils.display": "display_metrics_table",
    "atroposlib.utils.force_diverse_samples": "generate_with_diverse_first_tokens",
    "atroposlib.utils.io": "parse_http_response",
    "atroposlib.utils.message_history_utils": (
        "ensure_trajectory_token_limit strip_thinking truncate_thinking"
    ),
    "atroposlib.utils.metrics": "get_std_min_max_avg",
    "atroposlib.utils.tokenize_for_trainer": "UNMASKED_ROLES tokenize_for_trainer",
    "atroposlib.utils.tokenizers.qwen_fixed_tokenizer": "QwenFixedTokenizer",
    "atroposlib.utils.tool_call_parser": "extract_tool_call parse_tool_call",
    "atroposlib.api": "app",
    "atroposlib.api.server": (
        "EnvIdentifier RegisterEnv Registration ScoredData app create_app"
    ),
    "atroposlib.cli.dpo": "main",
    "atroposlib.cli.run_api": "main",
    "atroposlib.cli.sft": "main",
    "atroposlib.cli.view_run": "main",
    "atroposlib.cli.view_run_multimodal": "main",
    "atroposlib.cli.inference_node_wandb_watcher": "main",
    "atroposlib.api.utils": (
        "find_groups_summing_to_target grab_batch_with_minimum_allocations "
        "grab_exact_from_heterogeneous_queue"
    ),
    "atroposlib.client": "AsyncRolloutClient RolloutClient",
    "atroposlib.frontend.jsonl2html": "create_html_for_group generate_html get_score_class",
    "example_trainer": (
        "TrainingConfig config_from_args parse_args train_legacy train_lora "
        "train_lora_restart train_shared_vllm"
    ),
    "example_trainer.advantage.estimators": "compute",
    "example_trainer.losses": "get",
    "example_trainer.data.packing": "pack_ffd",
    "helpers.length_penalties": (
        "ThresholdLengthPenaltyCalculator ThresholdLengthPenaltyConfig"
    ),
}


# Rewards as functions of completions, each in the module of its name.
REWARDS = (
    "accuracy accuracy_x cascading_r1_math chandas_meter cosine_scaled crossword_format format "
    "format_reasoning r1 reasoning_steps repetition_penalty"
).split()
PUBLIC |= {f"atroposlib.envs.reward_fns.{name}_reward": f"{name}_reward" for name in REWARDS}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_promised_names_can_be_imported(module):
    found = import_module(module)
    missing = [name for name in PUBLIC[module].split() if not hasattr(found, name)]
    assert missing == []
