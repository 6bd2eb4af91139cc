from __future__ import annotations

import pytest
from pydantic_cli import FailedExecutionException

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import (
    APIServerConfig,
    OpenaiConfig,
    ServerBaseline,
    ServerManagerConfig,
    as_server_list,
    resolve_openai_configs,
)

LOCAL = APIServerConfig(base_url="http://localhost:1/v1", api_key="k", model_name="m")


def test_defaults_are_those_of_the_original() -> None:
    assert APIServerConfig().model_dump() == {
        "timeout": 1200,
        "num_max_requests_at_once": 512,
        "num_requests_for_eval": 64,
        "model_name": "default",
        "rolling_buffer_length": 1000,
        "server_type": "openai",
        "tokenizer_name": "none",
        "api_key": "",
        "base_url": "",
        "n_kwarg_is_ignored": False,
        "health_check": True,
    }
    assert ServerManagerConfig().model_dump() == {
        "slurm": False,
        "testing": False,
        "max_n_completions": 8,
        "proxy_url": None,
        "tool_parser": None,
    }
    assert OpenaiConfig is APIServerConfig


def test_a_single_server_keeps_its_address() -> None:
    assert as_server_list(LOCAL) == [LOCAL]
    assert resolve_openai_configs(LOCAL) == LOCAL
    assert resolve_openai_configs([LOCAL]) == [LOCAL]


def test_command_line_flags_override_a_single_server() -> None:
    flags = {"openai.base_url": "http://other:2/v1", "env.group_size": 4}
    server = resolve_openai_configs(LOCAL, {"base_url": "http://other:2/v1"}, {}, flags)
    assert isinstance(server, APIServerConfig)
    assert (server.base_url, server.api_key) == ("http://other:2/v1", "k")


def test_flags_override_yaml_and_yaml_overrides_defaults() -> None:
    (server,) = resolve_openai_configs(
        [LOCAL],
        {"model_name": "from flags", "timeout": 5},
        {"openai": {"model_name": "from yaml", "timeout": 5}},
        {"openai.model_name": "from flags"},
    )
    assert (server.model_name, server.timeout, server.api_key) == ("from flags", 5, "k")


def test_a_yaml_list_replaces_the_defaults() -> None:
    entries = [{"base_url": "http://a/v1"}, {"base_url": "http://b/v1"}]
    servers = resolve_openai_configs(LOCAL, {}, {"openai": entries}, {})
    assert [server.base_url for server in servers] == ["http://a/v1", "http://b/v1"]


def test_a_yaml_list_of_one_merges_like_a_mapping() -> None:
    (server,) = resolve_openai_configs(LOCAL, {}, {"openai": [{"timeout": 7}]}, {})
    assert (server.timeout, server.base_url) == (7, LOCAL.base_url)


@pytest.mark.parametrize("several", ["yaml", "defaults"])
def test_overriding_one_of_several_servers_is_rejected(several: str) -> None:
    pair = [{"base_url": "http://a/v1"}, {"base_url": "http://b/v1"}]
    yaml = {"openai": pair} if several == "yaml" else {}
    defaults = LOCAL if several == "yaml" else [LOCAL, LOCAL]
    with pytest.raises(ConfigError, match="openai.timeout: ambiguous, which of 2 servers"):
        resolve_openai_configs(defaults, {"timeout": 3}, yaml, {"openai.timeout": 3})


def test_a_server_baseline_stays_a_baseline_until_an_address_is_given() -> None:
    baseline = ServerBaseline(timeout=9, server_type="vllm")
    assert resolve_openai_configs(baseline) is baseline
    renamed = resolve_openai_configs(
        baseline, {"model_name": "m"}, {}, {"openai.model_name": "m"}
    )
    assert renamed == ServerBaseline(timeout=9, server_type="vllm", model_name="m")
    server = resolve_openai_configs(
        baseline, {"base_url": "http://a/v1"}, {}, {"openai.base_url": "http://a/v1"}
    )
    assert isinstance(server, APIServerConfig)
    assert (server.timeout, server.server_type, server.base_url) == (9, "vllm", "http://a/v1")


def test_default_values_do_not_override() -> None:
    assert resolve_openai_configs(LOCAL, APIServerConfig().model_dump(), {}, {}) == LOCAL


def test_merged_values_apply_without_the_original_flags() -> None:
    server = resolve_openai_configs(LOCAL, {**LOCAL.model_dump(), "model_name": "m"})
    assert server == LOCAL.model_copy(update={"model_name": "m"})


def test_an_empty_list_of_servers_is_rejected() -> None:
    with pytest.raises(ConfigError, match="empty list"):
        as_server_list([])


def test_ambiguous_flags_raise_the_former_error_class_too() -> None:
    two = [APIServerConfig(base_url="http://a/v1"), APIServerConfig(base_url="http://b/v1")]
    with pytest.raises(FailedExecutionException) as refusal:
        resolve_openai_configs(two, cli_passed_flags={"openai.model_name": "m"})
    assert refusal.value.exit_code == 2
    assert "openai.model_name" in str(refusal.value)
