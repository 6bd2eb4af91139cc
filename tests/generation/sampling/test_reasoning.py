from __future__ import annotations

from types import SimpleNamespace

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.routing.manager import backend_for
from atroposlib.generation.sampling.reasoning import ReasoningConfig

OFFICIAL = "https://api.openai.com/v1"


def test_an_effort_or_a_token_budget_enables_reasoning() -> None:
    assert not ReasoningConfig().is_reasoning_kwargs_active()
    assert ReasoningConfig(effort="low").enabled and ReasoningConfig(max_tokens=1).enabled


def test_an_unsupported_reasoning_effort_is_rejected() -> None:
    with pytest.raises(ValueError, match="Invalid reasoning_effort"):
        ReasoningConfig(effort="hard")


@pytest.mark.parametrize(
    ("config", "base_url", "use_max_tokens", "body"),
    [
        (ReasoningConfig(), None, False, None),
        (ReasoningConfig(enabled=True), OFFICIAL, False, {"reasoning_effort": "medium"}),
        (ReasoningConfig(effort="high"), OFFICIAL, False, {"reasoning_effort": "high"}),
        (ReasoningConfig(enabled=True), None, False, {"reasoning": {"enabled": True}}),
        (
            ReasoningConfig(effort="low", max_tokens=9),
            "https://openrouter.ai/api/v1",
            False,
            {"reasoning": {"enabled": True, "effort": "low"}},
        ),
        (
            ReasoningConfig(effort="xhigh"),
            None,
            True,
            {"reasoning": {"enabled": True, "max_tokens": 30400}},
        ),
        (
            ReasoningConfig(max_tokens=9),
            None,
            False,
            {"reasoning": {"enabled": True, "max_tokens": 9}},
        ),
    ],
)
def test_each_host_gets_the_reasoning_fields_of_its_api(
    config: ReasoningConfig, base_url: str | None, use_max_tokens: bool, body: object
) -> None:
    assert config.build_extra_body(base_url, use_max_tokens) == body


def test_reasoning_settings_are_read_from_an_environment_config() -> None:
    env = SimpleNamespace(thinking_mode=True, reasoning_effort=None, max_reasoning_tokens=2048)
    assert ReasoningConfig.from_env_config(env) == ReasoningConfig(True, None, 2048)


@pytest.mark.parametrize("base_url", ["", None, OFFICIAL])
def test_an_empty_base_url_is_the_official_api(base_url: str | None) -> None:
    server = OpenAIServer(APIServerConfig(base_url=base_url), ReasoningConfig(effort="low"))
    sent = server._inject_reasoning_kwargs({"max_tokens": 5, "temperature": 0.2})
    assert sent == {
        "extra_body": {"reasoning_effort": "low"},
        "max_completion_tokens": 5,
        "temperature": 1.0,
    }


def test_an_unsupported_temperature_is_replaced_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = OpenAIServer(APIServerConfig(), ReasoningConfig(enabled=True))
    for temperature in (0.2, 1.0, 0.7):
        sent = server._inject_reasoning_kwargs({"temperature": temperature})
        assert sent["temperature"] == 1.0
    assert caplog.messages == [
        "https://api.openai.com: temperature 1.0 is sent: reasoning models refuse any other"
    ]


@pytest.mark.parametrize("server_type", ["vllm", "sglang", "trl"])
def test_local_engines_get_no_reasoning_fields(
    server_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = APIServerConfig(base_url="http://localhost:1/v1", server_type=server_type)
    server = backend_for(server_type)(config, ReasoningConfig(enabled=True))
    for _ in range(2):
        assert server._inject_reasoning_kwargs({"max_tokens": 5}) == {"max_tokens": 5}
    assert len(caplog.messages) == 1 and "thinking_mode has no effect" in caplog.text


def test_caller_fields_are_kept_except_reasoning_fields() -> None:
    config = APIServerConfig(base_url="https://openrouter.ai/api/v1")
    server = OpenAIServer(config, ReasoningConfig(max_tokens=9))
    sent = server._inject_reasoning_kwargs({"extra_body": {"min_p": 0.1, "reasoning": "x"}})
    assert sent["extra_body"] == {
        "min_p": 0.1,
        "reasoning": {"enabled": True, "max_tokens": 9},
    }


def test_the_environment_variable_key_is_sent_to_the_official_api_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-environment")
    official = OpenAIServer(APIServerConfig())
    elsewhere = OpenAIServer(APIServerConfig(base_url="http://localhost:1/v1"))
    assert official.http.headers == {"Authorization": "Bearer of-the-environment"}
    assert elsewhere.http.headers == {}
    alike = OpenAIServer(APIServerConfig(base_url="https://api.openai.com.example/v1"))
    assert alike.http.headers == {} and not alike.is_official_openai
