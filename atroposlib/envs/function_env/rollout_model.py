"""Model of a rollout: chat, tools, completions; records every token for training.

    reply = await model.chat("What is 3 + 4?")            # a str
    reply = await model.chat([*reply.messages, {"role": "user", "content": "Sure?"}])
    reply = await model.use_tools("What is 17 * 23?", tools=[multiply])
    agent = SomeAgent(base_url=(await model.endpoint()).base_url)

All calls of a ``model`` belong to the same rollout: a session on a single server.
"""

from __future__ import annotations

import inspect
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from atroposlib.envs.function_env.call_checks import checked_messages, require_sampling
from atroposlib.envs.function_env.recorder import Recorder
from atroposlib.envs.function_env.rewards import reward_number
from atroposlib.envs.function_env.tools import Tool, result_message, tool_schema
from atroposlib.errors import (
    ConfigError,
    ContextFull,
    InferenceError,
    RolloutError,
    SourceLine,
)
from atroposlib.generation.chat.pictures import pictures_in
from atroposlib.generation.chat.tool_call_translator import with_visible_tools
from atroposlib.generation.engines.slots import spending

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from atroposlib.generation.proxy.in_process import AgentSession

Message = Mapping[str, Any]
Messages = Union[str, Sequence[Message]]  # a text stands for a user message
OpponentVersion = Union[int, Literal["pool"]]


Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])


def _keep_coroutine(method: Method) -> Method:
    """``method``, with its coroutine and the caller's line kept: ``await`` may be forgotten."""

    @wraps(method)
    def call(model: Model, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        caller = sys._getframe(1)
        coroutine = method(model, *args, **kwargs)
        line = SourceLine(caller.f_code.co_filename, caller.f_lineno)
        model.calls.append((method.__name__, coroutine, line))
        return coroutine

    return call  # type: ignore[return-value]  # the same parameters and result


class Reply(str):
    """Text of the model, a string with the other fields of the response.

    Example: Reply("7") == "7", .finish_reason "stop", .tool_calls [],
    .message {"role": "assistant", "content": "7"}, .messages [the question, .message]
    """

    finish_reason: str | None  # stop, length or tool_calls
    tool_calls: list[dict[str, Any]]  # OpenAI's form: id, type, function {name, arguments}
    message: dict[str, Any]  # this reply as a message of a history
    # the history and this reply; for a completion only the reply
    messages: list[dict[str, Any]]

    @classmethod
    def of(cls, history: Sequence[Message], choice: Any) -> Reply:
        """Reply from a ``choice`` of a chat or, without a history, of a text completion."""
        message = getattr(choice, "message", None)
        reply = cls(choice.text if message is None else message.content or "")
        calls = (message and message.tool_calls) or []
        reply.tool_calls = [
            dict(call) if isinstance(call, Mapping) else call.model_dump() for call in calls
        ]
        reply.finish_reason = choice.finish_reason
        reply.message = {"role": "assistant", "content": str(reply)}
        if reply.tool_calls:
            reply.message["tool_calls"] = reply.tool_calls
        reply.messages = [*map(dict, history), reply.message]
        return reply


@dataclass(repr=False)
class Model:
    """Samples the model for a rollout."""

    session: (
        Any  # has OpenAI's two calls: a managed session, or a server that returns text only
    )
    split: str  # "train" or "eval": the slots of a server that the calls take
    temperature: float  # default of every call
    max_tokens: int  # default of every call
    open_endpoint: Callable[[str], Awaitable[AgentSession]]  # by its name
    # opens an endpoint of an earlier version; None: there are none here
    open_opponent: Callable[[str, OpponentVersion], Awaitable[AgentSession]] | None = None
    stop: Sequence[str] = ()  # default of every call
    describe_tools: bool = False  # sent in a system message if the chat template ignores tools
    examples: Sequence[Message] = ()  # sent before the messages of every chat, in no history
    recorder: Recorder = field(default_factory=Recorder)
    # replies of all calls to chat and complete
    replies: list[Reply] = field(default_factory=list)
    calls: list[tuple[str, Coroutine[Any, Any, Any], SourceLine]] = field(default_factory=list)
    endpoints: dict[str, AgentSession] = field(default_factory=dict)  # opened, by name
    frozen: set[str] = field(default_factory=set)  # names of endpoints that are not trained
    opponents: set[str] = field(
        default_factory=set
    )  # names of endpoints of an earlier version
    # side of the policy in a game: the baseline of ``advantage: role`` is by role
    role: str | None = None
    # replies of these endpoints, which no row holds, by name
    untrained: dict[str, list[Message]] = field(default_factory=dict)
    row_tokens: int = 0  # tokens of the sequence with the last reply
    rewards: dict[int, float] = field(default_factory=dict)  # keys: indices of replies
    # gets the endpoint ("": chat and complete), the messages and the reply of each call
    listener: Callable[[str, Sequence[Message], Message], None] | None = None
    _is_context_full: bool = False

    @_keep_coroutine
    async def chat(
        self, messages: Messages, *, tools: Sequence[Tool] = (), **sampling: Any
    ) -> Reply:
        """The model's next message.

        Args:
            messages: OpenAI messages, or a text for a user message. Pictures are content
                parts of type image_url with a data URL of PNG, JPEG or WebP.
            tools: typed functions, objects (``tools.ToolObject``) or OpenAI's descriptions.
                The reply's ``tool_calls`` lists the calls; :meth:`use_tools` also runs them.
            sampling: temperature, max_tokens, stop, top_p ...; what only the server knows goes
                into ``extra_body``.

        Raises:
            ContextFull: the messages do not fit into the context of the model. Earlier samples
                are trained, and scored by the function if it returns.
            InferenceError: no server gave a usable answer.

        Example: await model.chat("What is 3 + 4?", max_tokens=6)
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        history = checked_messages(messages)
        first = int(bool(history) and history[0].get("role") == "system")
        shown = [*history[:first], *map(dict, self.examples), *history[first:]]
        pictures_in(history)  # an address is refused before anything is sent
        if tools:
            schemas = sampling["tools"] = [tool_schema(tool) for tool in tools]
            tokenizer = getattr(self.session, "tokenizer", None)
            if tokenizer is not None:
                parser = getattr(self.session, "tool_parser", "hermes")
                shown = with_visible_tools(
                    shown, schemas, tokenizer, parser, describe=self.describe_tools
                )
        params = self._params(sampling)
        with self._noting_full_context():
            completion = await self.session.chat_completion(messages=shown, **params)
        return self._reply_of(completion, history, shown)

    @_keep_coroutine
    async def use_tools(
        self,
        messages: Messages,
        *,
        tools: Sequence[Tool],
        max_turns: int = 8,
        until: Callable[[], object] | None = None,
        **sampling: Any,
    ) -> Reply:
        """Chat and run the tools that the model calls, until it calls none.

        The reply number ``max_turns`` is returned without running its calls. ``until`` is called
        after the tools have run, and a true value ends the turns, as does a tool that is ``done``.

        Example: reply = await model.use_tools("Find the word.", tools=[guess], until=game.over)
        """
        reply = await self.chat(messages, tools=tools, **sampling)
        for _ in range(max_turns - 1):
            if not reply.tool_calls:
                break
            with spending("tools"):
                answers = [await result_message(tools, call) for call in reply.tool_calls]
            ended = any(getattr(tool, "done", False) for tool in tools)
            if ended or (until is not None and until()):
                break
            reply = await self.chat([*reply.messages, *answers], tools=tools, **sampling)
        return reply

    @_keep_coroutine
    async def complete(self, prompt: str | Sequence[int], **sampling: Any) -> Reply:
        """Continue ``prompt``, text or token ids, without a chat template.

        Example: await model.complete("3 + 4 =", max_tokens=2, stop=["\\n"])
        """
        params = self._params(sampling)
        with self._noting_full_context():
            completion = await self.session.completion(prompt=prompt, **params)
        return self._reply_of(completion)

    @_keep_coroutine
    async def endpoint(
        self, name: str = "", *, trainable: bool = True, version: OpponentVersion | None = None
    ) -> AgentSession:
        """Address for an agent with its own client: ``base_url`` and ``api_key``.

        Every call to it belongs to this rollout and is trained like a call of ``chat``. Each
        ``name`` has one endpoint, with its own ``reward`` and its own groups, for example a
        seat of a game. The samples of an endpoint that is not ``trainable`` enter no row and no
        figure of the training; the metadata of the group has its replies, for a replay.

        With a ``version`` an earlier version of the policy answers, and nothing is trained: a
        number, or "pool" for any version that the servers hold. Without such a version the present
        version answers, and the metric ``NAME/fallback`` is 1 in place of 0.

        Example: OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
        """
        if name not in self.endpoints:
            if version is None or self.open_opponent is None:
                opened = await self.open_endpoint(name)
            else:
                opened = await self.open_opponent(name, version)
            self.endpoints[name] = opened
            opened.listen(partial(self._hear, name))
            if version is not None:
                self.opponents.add(name)
            if version is not None or not trainable:
                self.frozen.add(name)
        return self.endpoints[name]

    def _hear(self, name: str, sent: Sequence[Message], reply: Message) -> None:
        """Take a reply to the endpoint ``name``."""
        if name in self.frozen:
            self.untrained.setdefault(name, []).append(reply)
        if self.listener is not None:
            self.listener(name, sent, reply)

    def reward(self, reward: float) -> None:
        """Reward of the last reply; the rewards of all replies are added to the score.

        Raises ConfigError: there is no reply yet.
        """
        if not self.replies:
            raise ConfigError("model.reward: rewards the last reply, and there is none yet")
        self.rewards[len(self.replies) - 1] = reward_number(reward, "the reward of a reply")

    @_keep_coroutine
    async def openai(
        self, name: str = "", *, trainable: bool = True, version: OpponentVersion | None = None
    ) -> AsyncOpenAI:
        """Client of the package ``openai`` for :meth:`endpoint`; the model name is ignored."""
        endpoint = await self.endpoint(name, trainable=trainable, version=version)
        return client_of(endpoint.base_url, endpoint.api_key)

    def refuse_forgotten_calls(self, env: str, item: str) -> None:
        """Check, after the function has ended, that each of its calls was awaited.

        Raises:
            RolloutError: a call was not awaited; the error names its line.
        """
        for name, coroutine, line in self.calls:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                text = f"the call was never awaited: write `await model.{name}(...)`"
                raise RolloutError(env, repr(item), "rollout", TypeError(text), line)

    def close_forgotten_calls(self) -> None:
        """Close calls that were never awaited, which Python would warn of otherwise."""
        for _, coroutine, _ in self.calls:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    @contextmanager
    def _noting_full_context(self) -> Iterator[None]:
        try:
            yield
        except ContextFull:
            self._is_context_full = True
            raise

    @property
    def is_context_full(self) -> bool:
        """Whether a call, also of a trained agent, did not fit into the model's context."""
        agents = self.trained_endpoints
        return self._is_context_full or any(agent.is_context_full for agent in agents)

    @property
    def trained_endpoints(self) -> list[AgentSession]:
        """The endpoints whose samples are trained."""
        return [
            endpoint for name, endpoint in self.endpoints.items() if name not in self.frozen
        ]

    def _params(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        require_sampling(sampling)
        if sampling.get("n", 1) != 1:
            raise ConfigError(
                "n: one rollout is one sample; group_size says how many there are"
            )
        defaults = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "split": self.split,
            **({"stop": list(self.stop)} if self.stop else {}),
        }
        return {**defaults, **sampling}

    def _reply_of(
        self,
        completion: Any,
        history: Sequence[Message] | None = None,  # None: of a text completion
        shown: Sequence[Message] = (),  # the history as it was sent
    ) -> Reply:
        if not completion.choices:
            raise InferenceError("the server answered without a choice")
        reply = Reply.of(history or [], completion.choices[0])
        self.replies.append(reply)
        if self.listener is not None:
            self.listener("", shown or history or [], reply.message)
        nodes_for = getattr(self.session, "nodes_for", None)
        # Without it: a server that returns text only, or a session of another process.
        if nodes_for is not None:
            (node,) = nodes_for(completion)
            self.row_tokens = len(node.tokens)
            messages = [] if history is None else [*map(dict, shown), reply.message]
            sampled = completion.usage.completion_tokens if completion.usage else None
            self.recorder.add(messages, node, sampled)
        return reply


def client_of(base_url: str, api_key: str, **options: Any) -> AsyncOpenAI:
    """Client of the package ``openai``; all share their TLS settings, which take 20 ms."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    http = DefaultAsyncHttpxClient(verify=_tls())
    return AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http, **options)


_tls = lru_cache(maxsize=1)(ssl.create_default_context)
