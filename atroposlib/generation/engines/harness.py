"""Inference server for unit tests, with prepared responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from atroposlib.errors import ConfigError, InferenceRefused
from atroposlib.generation.chat.template import plain_message
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import chat_completion_of, completion_of
from atroposlib.generation.sampling.generation import FourTuple

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

T = TypeVar("T")
# Constant, so that responses are the same on every run.
_ENVELOPE = {"id": "harness", "created": 0, "model": "harness"}


def create_chat_completion(
    resp: str | Sequence[str], n: int = 1, finish_reason: str = "stop"
) -> ChatCompletion:
    """A chat completion of a single text, repeated n times, or of several texts."""
    messages = [{"role": "assistant", "content": text} for text in _texts(resp, n)]
    choices = [
        {"index": i, "finish_reason": finish_reason, "message": message}
        for i, message in enumerate(messages)
    ]
    return chat_completion_of({**_ENVELOPE, "object": "chat.completion", "choices": choices})


def create_completion(
    resp: str | Sequence[str], n: int = 1, finish_reason: str = "stop"
) -> Completion:
    """A text completion of a single text, repeated n times, or of several texts."""
    choices = [
        {"index": i, "finish_reason": finish_reason, "text": text, "logprobs": None}
        for i, text in enumerate(_texts(resp, n))
    ]
    return completion_of({**_ENVELOPE, "object": "text_completion", "choices": choices})


class ServerHarness(APIServer):
    """Responses by exact prompt. Raises InferenceRefused for an unprepared prompt."""

    def __init__(self, config: Any = None, *unused: Any) -> None:
        super().__init__(_complete(config))
        self.chats: dict[str, ChatCompletion] = {}
        self.completions: dict[str, Completion] = {}
        self.token_outputs: dict[str, FourTuple] = {}
        self.calls: list[dict[str, Any]] = []  # keyword arguments of every attempt

    @property
    def config(self) -> APIServerConfig:
        """Settings; attributes that a given object lacks have their defaults."""
        return self._config

    @config.setter
    def config(self, given: Any) -> None:
        self._config = _complete(given)

    def set_desired_response(
        self, input_message: Sequence[Mapping[str, Any]], desired_response: ChatCompletion
    ) -> None:
        self.chats[chat_key(input_message)] = desired_response

    def set_desired_completion(self, input_message: str, completion: Completion) -> None:
        self.completions[input_message] = completion

    def set_tokens_and_logprobs_response(
        self,
        prompt: str,
        prompt_tokens: list[int],
        output_tokens_list: list[list[int]],
        output_logprobs_list: list[list[float]],
        finish_reasons: list[Any],
    ) -> None:
        rows = (output_tokens_list, output_logprobs_list, finish_reasons)
        self.token_outputs[prompt] = (prompt_tokens, *rows)

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        self.calls.append(kwargs)
        return _prepare(self.chats, chat_key(kwargs["messages"]), "set_desired_response")

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        self.calls.append(kwargs)
        return _prepare(self.completions, kwargs["prompt"], "set_desired_completion")

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> FourTuple:
        self.calls.append(kwargs)
        prompt = kwargs.get("prompt")
        if prompt is None:
            raise ConfigError(
                "the harness finds responses by prompt text: pass prompt, not ids alone"
            )
        return _prepare(self.token_outputs, prompt, "set_tokens_and_logprobs_response")


def chat_key(messages: Sequence[Mapping[str, Any]]) -> str:
    """A ``role:`` line and a ``content:`` line per message."""
    plain = map(plain_message, messages)
    return "\n".join(f"role:{m['role']}\ncontent:{m.get('content')}" for m in plain)


def _complete(config: Any) -> APIServerConfig:
    """``config``, or settings with its attributes: configs of tests have only a few attributes."""
    if isinstance(config, APIServerConfig):
        return config
    named = [name for name in APIServerConfig.model_fields if hasattr(config, name)]
    settings = {name: getattr(config, name) for name in named}
    return APIServerConfig(**{"health_check": False, **settings})


def _prepare(answers: Mapping[str, T], key: str, setter: str) -> T:
    if key not in answers:
        raise InferenceRefused(404, f"no response is prepared; call {setter} for: {key}")
    return answers[key]


def _texts(resp: str | Sequence[str], n: int) -> list[str]:
    return [resp] * n if isinstance(resp, str) else list(resp)
