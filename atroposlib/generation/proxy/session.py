"""One agent's session: it samples through a managed server and keeps what it sampled."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from atroposlib.errors import AtroposError, InferenceRefused, boundary
from atroposlib.generation.proxy.apis.idempotency import Call, CallBook, Request
from atroposlib.generation.proxy.apis.request import Answer, Ask, Json, Kind
from atroposlib.generation.proxy.apis.response import (
    answer_of,
    bare_id,
    generations_of,
    is_made_up,
    new_id,
)
from atroposlib.generation.proxy.rows import Rewards, Samples, SessionRow
from atroposlib.generation.sessions.sequences import SequenceNode

LAST = "last"


class Managed(Protocol):
    """What a session needs of ``ManagedServer`` and of its stand-in for text servers."""

    async def chat_completion(self, **kwargs: Any) -> Any: ...

    async def completion(self, **kwargs: Any) -> Any: ...

    def nodes_for(self, completion: Any) -> list[SequenceNode]: ...

    def get_state(self) -> dict[str, Any]: ...

    def reset(self) -> None: ...


@dataclass(frozen=True)
class Settings:
    """What whoever opens a session decides about it."""

    tool_parser: str | None = "hermes"
    track_tree: bool = False
    preserve_think_blocks: bool = False
    split: str = "train"
    sampling: Mapping[str, Any] = field(default_factory=dict)  # replaces what the agent asks


class Session:
    """Calls may run at once; each choice is a sample of its own."""

    def __init__(
        self,
        *,
        uuid: str,
        api_key: str,
        model_name: str,
        base_url: str | None,
        managed: Managed,
        settings: Settings,
    ) -> None:
        self.uuid = uuid
        self.api_key = api_key
        self.model_name = model_name
        self.base_url = base_url  # of the inference server
        self.managed = managed
        self.settings = settings
        self.created_at = time.time()
        self.last_accessed = self.created_at
        self.calls = CallBook()
        self.conversations: dict[str, list[Json]] = {}  # of the Responses API, by answer id
        self._forget()

    def _forget(self) -> None:
        self._samples = Samples()
        self._last: str | None = None  # the newest answer, by the time it was complete
        self._answer_ids: set[str] = set()
        self._made_up = False
        self._rewards: dict[str, float] = {}
        self._session_reward: float | None = None
        self._whole_text: dict[str, str] = {}  # of answers that were cut at a stop string

    # --- calls ----------------------------------------------------------------------

    def call(self, ask: Ask, request: Request) -> Call:
        """The call that answers ``ask``: one that runs, or did, if this one repeats it.

        Raises:
            KeyConflict: the idempotency key came before with another body.
        """
        earlier = self.calls.earlier(request)
        if earlier is not None:
            return earlier
        answer_id = new_id()
        return self.calls.start(
            request, answer_id, self._answer(self._settled(ask), answer_id)
        )

    def _settled(self, ask: Ask) -> Ask:
        """The ask with the session's own settings, and earlier answers whole again."""
        messages = [self._whole(message) for message in ask.messages]
        sampling = {**ask.sampling, **self.settings.sampling}
        split = ask.split or self.settings.split
        return replace(ask, messages=messages, sampling=sampling, split=split)

    async def prompt(self, ask: Ask) -> tuple[str, list[int]]:
        """Text and ids of the prompt that ``ask`` would send now. Nothing is sampled.

        Raises:
            InferenceRefused: 400; it cannot be rendered.
        """
        keywords = self._settled(ask).keywords()
        render = getattr(self.managed, "prompt_of", None)
        if render is None:
            raise InferenceRefused(400, "this session's server renders the prompts itself")
        try:
            with boundary("proxy", self.uuid, "rendering"):
                text, ids = await render(**keywords)
                return str(text), list(ids)
        except AtroposError as error:
            raise InferenceRefused(400, str(error)) from error

    async def _answer(self, ask: Ask, answer_id: str) -> Answer:
        created = int(time.time())
        keywords = {**ask.keywords(), "split": ask.split}
        with boundary("proxy", self.uuid, "generation"):
            if ask.kind is Kind.TEXT:
                completion = await self.managed.completion(**keywords)
            else:
                completion = await self.managed.chat_completion(**keywords)
            nodes = self.managed.nodes_for(completion)
        answer = answer_of(
            completion,
            nodes,
            ask,
            answer_id=answer_id,
            created=created,
            model=self.model_name,
        )
        self._keep(answer, nodes)
        return answer

    def _keep(self, answer: Answer, nodes: Sequence[SequenceNode]) -> None:
        if any(is_made_up(node) for node in nodes):
            self._made_up = True
        else:
            for i, generation in enumerate(generations_of(answer, nodes)):
                self._samples.add(answer.id, i, generation)
        for choice, whole in zip(answer.choices, answer.completion.choices):
            message = getattr(whole, "message", None)
            if message is not None and choice.content and message.content != choice.content:
                self._whole_text[choice.content] = message.content
        self._answer_ids.add(answer.id)
        self._last = answer.id

    def _whole(self, message: Json) -> Json:
        """An answer that was cut at a stop string as it was sampled, so that it extends."""
        whole = self._whole_text.get(message["content"])
        if whole is None or message["role"] != "assistant" or message.get("tool_calls"):
            return message
        return {**message, "content": whole}

    # --- what was sampled -------------------------------------------------------------

    def nodes(self, completion_id: str | None = None) -> list[SequenceNode]:
        """The session's sequences, or those of one completion's choices."""
        if completion_id is None:
            state = self.managed.get_state()
            return list(state["nodes"] if "nodes" in state else state["sequences"].values())
        wanted = bare_id(completion_id)
        call = self.calls.answered(wanted)
        if call is None:
            raise InferenceRefused(404, f"no completion {completion_id} in this session")
        return self.managed.nodes_for(call.task.result().completion)

    def reward(self, reward: float, completion_id: str | None) -> str | None:
        """Note a reward: of a completion, of the ``"last"`` one, or of the session (None).

        A second reward for the same replaces the first.

        Returns:
            The completion's id, 12 hex digits; None for the session.

        Raises:
            InferenceRefused: 400 for no finite number, 404 for no such completion.
        """
        if not math.isfinite(reward):
            raise InferenceRefused(400, "reward: a finite number")
        if completion_id is None:
            self._session_reward = reward
            return None
        wanted = self._last if completion_id == LAST else bare_id(completion_id)
        if wanted not in self._answer_ids or wanted is None:
            raise InferenceRefused(404, f"no completion {completion_id} in this session")
        self._rewards[wanted] = reward
        return wanted

    def rows(self, discount: float = 1.0) -> list[SessionRow]:
        """The rows of everything sampled; see ``rows.py``.

        Raises:
            InferenceRefused: 409; the server returns no tokens, so there are none.
        """
        if self._made_up:
            raise InferenceRefused(
                409,
                "this session's server returns text only, and made-up tokens cannot be "
                "trained on; use server_type vllm or sglang",
            )
        rewards = Rewards(self._rewards, self._session_reward, discount)
        return self._samples.rows(rewards, self.calls.unheard)

    def conversation(self, response_id: str) -> list[Json] | None:
        """The messages up to and with a response of the Responses API."""
        return self.conversations.get(bare_id(response_id))

    def touch(self) -> None:
        self.last_accessed = time.time()

    async def reset(self) -> None:
        """Stop what runs and forget everything that was sampled and rewarded."""
        await self.calls.cancel()
        self.calls = CallBook()
        self.conversations = {}
        self.managed.reset()
        self._forget()
