"""The names other people's environments and trainers import, and keep importing.

A thing that moves leaves a face at its old path. A name leaves this table only with a major
version and a line in the changelog.
"""

from __future__ import annotations

from importlib import import_module

import pytest

PUBLIC = {
    "atroposlib.envs": "BaseEnv BaseEnvConfig",
    "atroposlib.envs.base": (
        "APIServer APIServerConfig BaseEnv BaseEnvConfig EvalHandlingEnum Item OpenaiConfig "
        "ScoredDataGroup ScoredDataItem ServerBaseline"
    ),
    "atroposlib.envs.constants": (
        "ENV_NAMESPACE NAMESPACE_SEP OPENAI_NAMESPACE SERVER_MANAGER_NAMESPACE"
    ),
    "atroposlib.envs.server_handling.server_baseline": (
        "APIServer APIServerConfig AsyncSemWithAdaptiveWeight ReasoningConfig ServerBaseline "
        "VALID_REASONING_EFFORTS"
    ),
    "atroposlib.envs.server_handling.server_manager": (
        "APIServer APIServerConfig ServerBaseline ServerManager ServerManagerConfig"
    ),
    "atroposlib.envs.server_handling.openai_server": (
        "APIServerConfig OpenAIServer OpenaiConfig resolve_openai_configs"
    ),
    "atroposlib.envs.server_handling.vllm_server": "VLLMServer",
    "atroposlib.envs.server_handling.managed_server": "ManagedServer SequenceNode",
    "atroposlib.type_definitions": "Item Message UUID number",
    "atroposlib.utils.tokenize_for_trainer": "UNMASKED_ROLES tokenize_for_trainer",
    "atroposlib.api": "app",
    "atroposlib.api.server": "app create_app",
    "atroposlib.client": "AsyncRolloutClient RolloutClient",
    "atroposlib.frontend.jsonl2html": "generate_html",
    "example_trainer": "TrainingConfig",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_promised_names_can_be_imported(module):
    found = import_module(module)
    missing = [name for name in PUBLIC[module].split() if not hasattr(found, name)]
    assert missing == []
