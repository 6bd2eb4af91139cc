"""Managed session over a text-only server, with placeholder tokens.

For trials of an environment with a hosted API. The rows cannot be trained on, so an
environment variable must allow it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from atroposlib.generation.chat.pictures import pictures_in
from atroposlib.generation.chat.template import plain_message
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.sampling.generation import UNKNOWN_VERSION
from atroposlib.generation.sessions.sequences import SequenceNode
from atroposlib.wire import MASKED

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

ALLOW_VARIABLE = "ATROPOS_ALLOW_DUMMY_MANAGED_SERVER"
DUMMY_LENGTH = 128
DUMMY_LOGPROB = -0.5


def dummy_allowed() -> bool:
    """Whether the environment variable allows placeholder tokens."""
    return os.environ.get(ALLOW_VARIABLE, "").lower() in ("1", "true", "yes")


def require_dummy_allowed(server_type: str) -> None:
    """Raise NotImplementedError with the remedy, unless placeholder tokens are allowed."""
    if not dummy_allowed():
        raise NotImplementedError(
            f"a server of type {server_type} returns no token ids, so a managed session "
            "cannot keep what was sampled. Use server_type vllm or sglang for training; "
            f"to try an environment without training, set {ALLOW_VARIABLE}=1 for placeholder tokens"
        )


class DummyManagedServer:
    """Forwards calls; every choice gets a node of placeholder tokens."""

    def __init__(
        self, server: APIServer, tokenizer: Any = None, track_tree: bool = False
    ) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.track_tree = track_tree
        self._nodes: list[SequenceNode] = []
        self._nodes_of: dict[str, list[SequenceNode]] = {}

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        completion = await self.server.chat_completion(**kwargs)
        plain = map(plain_message, kwargs["messages"])
        before = "".join(f"{m['role']}:{m.get('content')}\n\n" for m in plain)
        replies = [choice.message.content for choice in completion.choices]
        texts = [f"{before}assistant:{reply}" for reply in replies]
        self._keep(completion, texts, pictures_in(kwargs["messages"]))
        return completion

    async def completion(self, **kwargs: Any) -> Completion:
        completion = await self.server.completion(**kwargs)
        self._keep(completion, [f"{kwargs['prompt']}{c.text}" for c in completion.choices])
        return completion

    async def get_logprobs(self, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("DummyManagedServer does not implement get_logprobs")

    def nodes_for(self, completion: ChatCompletion | Completion) -> list[SequenceNode]:
        """The node of each choice, in choice order."""
        return list(self._nodes_of[completion.id])

    def get_state(self) -> dict[str, Any]:
        if self.track_tree:
            return {"sequences": {node.full_text: node for node in self._nodes}, "tree": {}}
        return {"nodes": list(self._nodes)}

    def reset(self) -> None:
        self._nodes = []
        self._nodes_of = {}

    def _keep(
        self,
        completion: ChatCompletion | Completion,
        texts: list[str],
        images: Sequence[str] = (),
    ) -> None:
        reasons = [choice.finish_reason for choice in completion.choices]
        nodes = [_dummy_node(text, reason, images) for text, reason in zip(texts, reasons)]
        self._nodes.extend(nodes)
        self._nodes_of[completion.id] = nodes


def _dummy_node(full_text: str, finish_reason: str, images: Sequence[str]) -> SequenceNode:
    return SequenceNode(
        full_text=full_text,
        tokens=list(range(DUMMY_LENGTH)),
        masked_tokens=[MASKED, *range(1, DUMMY_LENGTH)],
        logprobs=[DUMMY_LOGPROB] * DUMMY_LENGTH,
        versions=[UNKNOWN_VERSION] * DUMMY_LENGTH,
        images=list(images),
        metadata={"finish_reason": finish_reason, "dummy_tokens": True},
    )
