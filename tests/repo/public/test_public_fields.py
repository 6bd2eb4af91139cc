"""Fields, types, defaults and values of the public configurations and records."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, Optional

import pytest

from atroposlib.envs.base import EvalHandlingEnum
from tests.repo.public.surface import SERVERS, load

BASELINE_FIELDS = {
    "timeout": (int, 1200),
    "num_max_requests_at_once": (int, 512),
    "num_requests_for_eval": (int, 64),
    "model_name": (str, "default"),
    "rolling_buffer_length": (int, 1000),
    "server_type": (Literal["openai", "trl", "sglang", "vllm"], "openai"),
    "tokenizer_name": (str, "none"),
}
FIELDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "atroposlib.envs.base:BaseEnvConfig": {
        "group_size": (int, 4),
        "max_num_workers": (int, -1),
        "max_eval_workers": (int, 16),
        "max_num_workers_per_node": (int, 8),
        "steps_per_eval": (int, 100),
        "max_token_length": (int, 2048),
        "eval_handling": (EvalHandlingEnum, EvalHandlingEnum.STOP_TRAIN),
        "eval_limit_ratio": (float, 0.5),
        "inference_weight": (float, 1.0),
        "batch_size": (int, -1),
        "max_batches_offpolicy": (int, 3),
        "tokenizer_name": (str, "NousResearch/DeepHermes-3-Llama-3-3B-Preview"),
        "use_wandb": (bool, True),
        "rollout_server_url": (str, "http://localhost:8000"),
        "total_steps": (int, 1000),
        "wandb_name": (Optional[str], None),
        "num_rollouts_to_keep": (int, 32),
        "num_rollouts_per_group_for_logging": (int, 1),
        "ensure_scores_are_not_same": (bool, True),
        "data_path_to_save_groups": (Optional[str], None),
        "data_dir_to_save_evals": (Optional[str], None),
        "min_items_sent_before_logging": (int, 2),
        "include_messages": (bool, False),
        "min_batch_allocation": (Optional[float], None),
        "worker_timeout": (float, 600),
        "thinking_mode": (bool, False),
        "reasoning_effort": (Optional[str], None),
        "max_reasoning_tokens": (Optional[int], None),
        "custom_thinking_prompt": (Optional[str], None),
    },
    "atroposlib.envs.base:ServerBaseline": BASELINE_FIELDS,
    "atroposlib.envs.base:APIServerConfig": {
        **BASELINE_FIELDS,
        "api_key": (Optional[str], ""),
        "base_url": (Optional[str], ""),
        "n_kwarg_is_ignored": (bool, False),
        "health_check": (bool, True),
    },
    f"{SERVERS}.server_manager:ServerManagerConfig": {
        "slurm": (bool, False),
        "testing": (bool, False),
        "max_n_completions": (int, 8),
        "proxy_url": (Optional[str], None),
    },
    "atroposlib.envs.teacher_distillation_env:TeacherDistillationConfig": {
        "teacher_enabled": (bool, False),
        "teacher_top_k": (int, 0),
    },
}


@pytest.mark.parametrize("target", FIELDS)
def test_promised_fields_have_their_type_and_default(target):
    fields = load(target).model_fields
    found = {
        name: (fields[name].annotation, fields[name].default)
        for name in FIELDS[target]
        if name in fields
    }
    assert found == FIELDS[target]


@pytest.mark.parametrize("target", FIELDS)
def test_a_config_can_be_made_without_arguments(target):
    load(target)()


def test_enumerations_and_namespaces_have_the_promised_values():
    constants = import_module("atroposlib.envs.constants")
    assert [member.value for member in EvalHandlingEnum] == [
        "STOP_TRAIN",
        "LIMIT_TRAIN",
        "NONE",
    ]
    assert (constants.ENV_NAMESPACE, constants.OPENAI_NAMESPACE) == ("env", "openai")
    assert (constants.SERVER_MANAGER_NAMESPACE, constants.NAMESPACE_SEP) == ("server", ".")
    assert load("atroposlib.utils.tokenize_for_trainer:UNMASKED_ROLES") == [
        "assistant",
        "agent",
    ]
    assert set(load(f"{SERVERS}.server_baseline:VALID_REASONING_EFFORTS")) == {
        *("none", "minimal", "low", "medium", "high", "xhigh")
    }


def test_the_messages_of_the_rollout_api_are_pydantic_models():
    row = {"tokens": [[1]], "masks": [[1]], "scores": [1.0]}
    group = load("atroposlib.api.server:ScoredData")(**row)
    assert group.model_dump(exclude_none=True) == row
    assert {"advantages", "distill_logprobs", "env_id"} <= type(group).model_fields.keys()
    assert load("atroposlib.api.server:EnvIdentifier")(env_id=3).model_dump()["env_id"] == 3


MESSAGES = {
    "Registration": (
        "wandb_group wandb_project batch_size max_token_len checkpoint_dir "
        "save_checkpoint_interval starting_step num_steps"
    ),
    "RegisterEnv": "max_token_length desired_name weight group_size min_batch_allocation",
    "EnvIdentifier": "env_id",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_messages_of_an_old_client_have_their_fields(name):
    known = load(f"atroposlib.api.server:{name}").model_fields
    assert [field for field in MESSAGES[name].split() if field not in known] == []
    required = {field for field, info in known.items() if info.is_required()}
    assert required <= set(MESSAGES[name].split())


GROUP_KEYS = (
    "tokens masks scores advantages ref_logprobs messages generation_params "
    "inference_logprobs group_overrides overrides images distill_token_ids distill_logprobs"
).split()


@pytest.mark.parametrize("name", ["ScoredDataGroup", "ScoredDataItem"])
def test_a_scored_group_and_a_scored_item_have_the_promised_keys(name):
    known = load(f"atroposlib.envs.base:{name}").__annotations__
    assert [key for key in GROUP_KEYS if key not in known] == []


def test_a_sequence_node_has_the_promised_fields():
    node = load(f"{SERVERS}.managed_server:SequenceNode")(
        full_text="ab", tokens=[1, 2], masked_tokens=[-100, 2], logprobs=[1.0, -0.5]
    )
    assert node.metadata is None or isinstance(node.metadata, dict)
    assert node.model_dump().keys() >= {"full_text", "tokens", "masked_tokens", "logprobs"}
