"""Session of an agent: samples through a managed server and keeps the samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from atroposlib.errors import AtroposError, ContextFull, InferenceRefused, boundary
from atroposlib.generation.chat.tool_call_translator import with_visible_tools
from atroposlib.generation.engines.returned import token_receiver, use_receiver
from atroposlib.generation.proxy.apis.exchange import (
    Json,
    SamplingRequest,
    SamplingResponse,
    bare_id,
    is_placeholder,
    new_id,
    sampling_response,
)
from atroposlib.generation.proxy.apis.idempotency import (
    CallIdentity,
    IdempotentCall,
    IdempotentCalls,
)
from atroposlib.generation.proxy.sample_tree import Rewards, SampleTree, SessionRow
from atroposlib.generation.sampling.generation import DEFAULT_MAX_TOKENS
from atroposlib.generation.sessions.dummy import DummyManagedServer, dummy_allowed
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.generation.sessions.sequences import SequenceNode

LAST = "last"


# A listener gets the messages of each call, and the reply as a message.
Listener = Callable[[Sequence[Json], Json], None]


def reply_message(choice: Any) -> Json:
    """The reply of a chat or text completion as a message."""
    message = getattr(choice, "message", None)
    if message is None:
        return {"role": "assistant", "content": choice.text}
    calls = [
        call if isinstance(call, dict) else call.model_dump()
        for call in message.tool_calls or ()
    ]
    reply = {"role": "assistant", "content": message.content or ""}
    return {**reply, "tool_calls": calls} if calls else reply


class SessionSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Settings given when a session is opened."""

    tool_parser: str | None = "hermes"
    track_tree: bool = False
    preserve_think_blocks: bool = False
    split: str = "train"
    sampling: Json = {}  # overrides the agent's values
    max_tokens: int | None = None  # limit of a reply; a smaller value of the agent holds
    stop: list[str] = []  # stop strings in addition to the agent's
    # Tools that the chat template ignores: described in a system message, rejected, or (None)
    # left to the caller.
    describe_tools: bool | None = False


@dataclass(kw_only=True, eq=False, repr=False)  # the object holds a key
class ProxySession:
    """Samples for an agent. Calls may run concurrently; each choice is a separate sample."""

    uuid: str
    api_key: str
    model_name: str
    base_url: str | None  # address of the inference server
    managed: ManagedServer | DummyManagedServer
    settings: SessionSettings

    def __post_init__(self) -> None:
        self.created_at = time.time()
        self.last_accessed = self.created_at
        self.calls = IdempotentCalls()
        # Of the Responses API: messages up to and including a response, by its id.
        self.conversations: dict[str, list[Json]] = {}
        self.listener: Listener | None = None
        self._receiver = token_receiver.get()  # of the sample that opened the session
        self._clear()

    def _clear(self) -> None:
        self._samples = SampleTree()
        self._last: str | None = None  # id of the response that was complete last
        self._response_ids: set[str] = set()
        self._has_placeholders = False
        self.is_context_full = False  # a call did not fit into the context of the model
        self._rewards: dict[str, float] = {}
        self._session_reward: float | None = None

    def listen(self, listener: Listener) -> None:
        """Give ``listener`` each call from now on."""
        self.listener = listener

    def sample_from(self, managed: ManagedServer | DummyManagedServer) -> None:
        """Sample from another server, before the first call."""
        self.managed = managed

    # --- calls ----------------------------------------------------------------------

    def call(self, request: SamplingRequest, identity: CallIdentity) -> IdempotentCall:
        """Start a call, or return the call that it repeats (KeyConflict: its body differs)."""
        original = self.calls.find_original(identity)
        if original is not None:
            return original
        response_id = new_id()
        work = self._sample(self._with_settings(request), response_id)
        return self.calls.start(identity, response_id, work)

    def _with_settings(self, request: SamplingRequest) -> SamplingRequest:
        """The request with the session's settings."""
        settings = self.settings
        sampling = {**request.sampling, **settings.sampling}
        limit = sampling.get("max_tokens") or settings.max_tokens or DEFAULT_MAX_TOKENS
        sampling["max_tokens"] = min(limit, settings.max_tokens or limit)
        stop = [*request.stop, *settings.stop]
        split = request.split or settings.split
        return replace(request, sampling=sampling, stop=stop, split=split)

    def _keywords(self, request: SamplingRequest) -> Json:
        """Arguments of the managed session. Raises ConfigError for hidden tools."""
        keywords, settings = request.keywords(), self.settings
        if not request.tools or not settings.tool_parser or settings.describe_tools is None:
            return keywords
        if isinstance(self.managed, ManagedServer):  # otherwise the server renders the prompt
            keywords["messages"] = with_visible_tools(
                request.messages,
                request.tools,
                self.managed.tokenizer,
                settings.tool_parser,
                describe=settings.describe_tools,
            )
        return keywords

    async def prompt(self, request: SamplingRequest) -> tuple[str, list[int]]:
        """Text and token ids of a prompt, unsampled. Raises InferenceRefused (400)."""
        request = self._with_settings(request)
        render = getattr(self.managed, "prompt_of", None)
        if render is None:
            raise InferenceRefused(
                400, "the inference server of this session renders the prompts itself"
            )
        try:
            with boundary("proxy", self.uuid, "rendering"):
                text, ids = await render(**self._keywords(request))
                return str(text), list(ids)
        except AtroposError as error:
            raise InferenceRefused(400, str(error)) from error

    async def _sample(self, request: SamplingRequest, response_id: str) -> SamplingResponse:
        created = int(time.time())
        with boundary("proxy", self.uuid, "generation"):
            keywords = {**self._keywords(request), "split": request.split}
            is_chat = request.prompt is None
            call = self.managed.chat_completion if is_chat else self.managed.completion
            try:
                # A call of an agent runs in a task of the HTTP server, outside of the sample.
                with use_receiver(self._receiver):
                    completion: Any = await call(**keywords)
            except ContextFull:
                self.is_context_full = True
                raise
            nodes = self.managed.nodes_for(completion)
        if self.listener is not None:
            sent = request.messages or [{"role": "user", "content": request.prompt}]
            for choice in completion.choices:
                self.listener(sent, reply_message(choice))
        response = sampling_response(
            completion, nodes, request, response_id, created, self.model_name
        )
        self._keep(response, nodes)
        return response

    def _keep(self, response: SamplingResponse, nodes: Sequence[SequenceNode]) -> None:
        self._has_placeholders |= any(map(is_placeholder, nodes))
        for i, choice in enumerate(response.choices):
            self._samples.add(response.id, i, choice.generation)
        self._response_ids.add(response.id)
        self._last = response.id

    # --- samples ----------------------------------------------------------------------

    def nodes(self, completion_id: str | None = None) -> list[SequenceNode]:
        """Sequences of the session, or of a completion. Raises InferenceRefused (404)."""
        if completion_id is None:
            state = self.managed.get_state()
            return list(state["nodes"] if "nodes" in state else state["sequences"].values())
        call = self.calls.finished_call(bare_id(completion_id))
        if call is None:
            raise InferenceRefused(404, f"no completion {completion_id} in this session")
        return self.managed.nodes_for(call.task.result().completion)

    def reward(self, reward: float, completion_id: str | None) -> str | None:
        """Set the reward of a completion, of the ``"last"`` completion, or of the session (None).

        Returns the completion's id, 12 hex digits. Raises InferenceRefused: 400 for a reward
        that is not finite, 404 for an unknown completion.
        """
        if not math.isfinite(reward):
            raise InferenceRefused(400, "reward: must be a finite number")
        if completion_id is None:
            self._session_reward = reward
            return None
        wanted = self._last if completion_id == LAST else bare_id(completion_id)
        if wanted not in self._response_ids or wanted is None:
            raise InferenceRefused(404, f"no completion {completion_id} in this session")
        self._rewards[wanted] = reward
        return wanted

    @property
    def is_rewarded(self) -> bool:
        """Whether the session or one of its completions was rewarded."""
        return self._session_reward is not None or bool(self._rewards)

    def score(self, otherwise: float) -> float:
        """The session's reward, else ``otherwise``, plus the rewards of its completions."""
        own = otherwise if self._session_reward is None else self._session_reward
        return own + sum(self._rewards.values())

    def rows(self, discount: float = 1.0) -> list[SessionRow]:
        """Training rows of all samples (``sample_tree.py``). Raises InferenceRefused (409)."""
        if self._has_placeholders and not dummy_allowed():
            raise InferenceRefused(
                409,
                "the inference server of this session returns text only, and placeholder "
                "tokens cannot be trained on; use server_type vllm or sglang",
            )
        rewards = Rewards(self._rewards, self._session_reward, discount)
        return self._samples.rows(rewards, self.calls.undelivered)

    def touch(self) -> None:
        self.last_accessed = time.time()

    async def reset(self) -> None:
        """Cancel running calls and delete all samples and rewards."""
        await self.calls.cancel()
        self.calls = IdempotentCalls()
        self.conversations = {}
        self.managed.reset()
        self._clear()
