"""``model``: what a function environment calls, and what remembers every token for training.

    reply = await model.chat("What is 3 + 4?")            # a str
    reply = await model.chat([*reply.messages, {"role": "user", "content": "Sure?"}])
    reply = await model.use_tools("What is 17 * 23?", tools=[multiply])
    agent = SomeAgent(base_url=(await model.endpoint()).base_url)

One ``model`` is one rollout: one session on one server, from the first call to the last.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, Union

from atroposlib.envs.function_env.recorder import ModelCall, Recorder
from atroposlib.envs.function_env.tools import Tool, answer, schema_of
from atroposlib.errors import ConfigError, InferenceError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Message = Mapping[str, Any]
Messages = Union[str, Sequence[Message]]  # text stands for one user message


class SamplingSession(Protocol):
    """A managed session, or servers that return text only: both have OpenAI's two calls."""

    async def chat_completion(self, **kwargs: Any) -> Any: ...

    async def completion(self, **kwargs: Any) -> Any: ...


class Endpoint(Protocol):
    """An address that speaks to the model as OpenAI's does, for this rollout alone."""

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> str: ...


class Reply(str):
    """What the model wrote; a string that also knows the rest of the answer.

    Example: Reply("7") == "7", .finish_reason "stop", .tool_calls [],
    .message {"role": "assistant", "content": "7"}, .messages [the question, .message]
    """

    finish_reason: str | None  # stop, length or tool_calls
    tool_calls: list[dict[str, Any]]  # as OpenAI's: id, type, function {name, arguments}
    message: dict[str, Any]  # this answer, ready to stand in a history
    messages: list[dict[str, Any]]  # the whole history with it; of a completion only itself

    @classmethod
    def of(cls, history: Sequence[Message], choice: Any) -> Reply:
        """The reply that ``choice`` of a chat completion is."""
        reply = cls(choice.message.content or "")
        calls = choice.message.tool_calls or []
        reply.tool_calls = [
            dict(call) if isinstance(call, Mapping) else call.model_dump() for call in calls
        ]
        reply.finish_reason = choice.finish_reason
        reply.message = {"role": "assistant", "content": str(reply)}
        if reply.tool_calls:
            reply.message["tool_calls"] = reply.tool_calls
        reply.messages = [*map(dict, history), reply.message]
        return reply

    @classmethod
    def of_text(cls, choice: Any) -> Reply:
        """The reply that ``choice`` of a text completion is."""
        reply = cls(choice.text)
        reply.tool_calls = []
        reply.finish_reason = choice.finish_reason
        reply.message = {"role": "assistant", "content": str(reply)}
        reply.messages = [reply.message]
        return reply


class Model:
    """The model of one rollout.

    Args:
        split: "train" or "eval"; decides which slots of a server the calls take.
        temperature, max_tokens: of every call that does not say otherwise.
        open_endpoint: opens an address for agents that bring their own client.
    """

    def __init__(
        self,
        session: SamplingSession,
        *,
        split: str,
        temperature: float,
        max_tokens: int,
        open_endpoint: Callable[[], Awaitable[Endpoint]],
    ) -> None:
        self.split = split
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.recorder = Recorder()
        self.replies: list[Reply] = []  # of every call to chat and complete
        self._session = session
        self._open_endpoint = open_endpoint
        self._endpoint: Endpoint | None = None

    async def chat(
        self, messages: Messages, *, tools: Sequence[Tool] = (), **sampling: Any
    ) -> Reply:
        """The model's next message.

        Args:
            messages: OpenAI messages, or a text for one user message.
            tools: typed functions or OpenAI's descriptions; the reply's ``tool_calls`` says
                which to call, and :meth:`use_tools` does it.
            sampling: temperature, max_tokens, stop, top_p ...

        Raises:
            InferenceError: no server gave a usable answer.

        Example: await model.chat("What is 3 + 4?", max_tokens=6)
        """
        history = _as_messages(messages)
        if tools:
            sampling["tools"] = [schema_of(tool) for tool in tools]
        params = self._params(sampling)
        completion = await self._session.chat_completion(messages=history, **params)
        choice = self._only_choice(completion)
        reply = Reply.of(history, choice)
        self.replies.append(reply)
        self._remember(completion, params, reply.messages)
        return reply

    async def use_tools(
        self, messages: Messages, *, tools: Sequence[Tool], max_turns: int = 8, **sampling: Any
    ) -> Reply:
        """Chat, run the tools that the model calls, and go on until it calls none.

        After ``max_turns`` replies the last one comes back, its calls not run.

        Example: reply = await model.use_tools("What is 17 * 23?", tools=[multiply])
        """
        reply = await self.chat(messages, tools=tools, **sampling)
        for _ in range(max_turns - 1):
            if not reply.tool_calls:
                break
            answers = [await answer(tools, call) for call in reply.tool_calls]
            reply = await self.chat([*reply.messages, *answers], tools=tools, **sampling)
        return reply

    async def complete(self, prompt: str | Sequence[int], **sampling: Any) -> Reply:
        """What the model writes after ``prompt``, text or token ids; no chat template.

        Example: await model.complete("3 + 4 =", max_tokens=2, stop=["\\n"])
        """
        params = self._params(sampling)
        completion = await self._session.completion(prompt=prompt, **params)
        choice = self._only_choice(completion)
        reply = Reply.of_text(choice)
        self.replies.append(reply)
        self._remember(completion, params, [])
        return reply

    async def endpoint(self) -> Endpoint:
        """An address for an agent that brings its own client: ``base_url`` and ``api_key``.

        Every call to it belongs to this rollout and is trained like one of ``chat``.

        Example: OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        """
        if self._endpoint is None:
            self._endpoint = await self._open_endpoint()
        return self._endpoint

    async def openai(self) -> AsyncOpenAI:
        """A client of the package ``openai`` for :meth:`endpoint`; any model name will do."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        endpoint = await self.endpoint()
        # Made anew for every client, the TLS settings alone would take 20 ms of a rollout.
        http = DefaultAsyncHttpxClient(verify=_tls())
        return AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http
        )

    def _params(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        if sampling.get("n", 1) != 1:
            raise ConfigError(
                "n: one rollout is one sample; group_size says how many there are"
            )
        defaults = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "split": self.split,
        }
        return {**defaults, **sampling}

    @staticmethod
    def _only_choice(completion: Any) -> Any:
        if not completion.choices:
            raise InferenceError("the server answered without a choice")
        return completion.choices[0]

    def _remember(
        self, completion: Any, params: Mapping[str, Any], messages: list[dict[str, Any]]
    ) -> None:
        nodes_for = getattr(self._session, "nodes_for", None)
        if nodes_for is None:
            return  # a server that returns text only, or a session that another process keeps
        (node,) = nodes_for(completion)
        call = ModelCall(float(params["temperature"]), messages)
        sampled = completion.usage.completion_tokens if completion.usage else None
        self.recorder.add(call, node, sampled)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _as_messages(messages: Messages) -> list[dict[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(message) for message in messages]
