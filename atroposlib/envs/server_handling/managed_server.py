"""A chat session that keeps, token-exactly, what can be trained on.

    messages -> prompt text and ids -> longest earlier sequence -> generate -> nodes

The environment calls it like an OpenAI client and reads the rows with ``nodes_for``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atroposlib.envs.server_handling.adapter import ManagedServerAdapter
from atroposlib.envs.server_handling.chat_prompt import (
    Messages,
    encode_prompt,
    encode_suffix,
    raw_continuation,
    render,
)
from atroposlib.envs.server_handling.dummy_managed_server import DummyManagedServer
from atroposlib.envs.server_handling.generation import Generation
from atroposlib.envs.server_handling.openai_path import chat_completion_of, completion_of
from atroposlib.envs.server_handling.sampling import sampling_params, without_doubled_bos
from atroposlib.envs.server_handling.sequences import (
    SequenceList,
    SequenceNode,
    SequenceTree,
    longest_extension,
)
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.token_server import TokenServer, load_tokenizer
from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

__all__ = ["DummyManagedServer", "ManagedServer", "ManagedServerAdapter", "SequenceNode"]


class ManagedServer:
    """Chat and completions whose tokens, masks, logprobs and versions are kept.

    Every choice becomes a :class:`SequenceNode`. A prompt that continues an earlier sequence
    extends it, with the earlier samples still trained. Calls may run at once: each reads its
    own nodes with :meth:`nodes_for`.

    Args:
        tokenizer: that of the model; else the server's, else the one of ``model_name``.
        track_tree: keep every turn as a node with a link to the turn before.
        preserve_think_blocks: keep earlier ``<think>`` blocks where the chat template would
            drop them, so that multi-turn sequences of thinking models extend.
    """

    def __init__(
        self,
        server: APIServer,
        tokenizer: Any = None,
        track_tree: bool = False,
        tool_parser: str | None = None,
        preserve_think_blocks: bool = False,
    ) -> None:
        if tool_parser:
            raise ConfigError("tool_parser: tool calling is not part of this version")
        self.server = server
        self.track_tree = track_tree
        self.preserve_think_blocks = preserve_think_blocks
        self._tokenizer = tokenizer
        self._sequences: SequenceList | SequenceTree
        self._nodes_of: dict[str, list[SequenceNode]] = {}
        self.reset()

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            if isinstance(self.server, TokenServer):
                self._tokenizer = self.server.tokenizer
            else:
                self._tokenizer = load_tokenizer(self.server.config)
        return self._tokenizer

    # --- calls ----------------------------------------------------------------------

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """``messages`` and sampling parameters as for OpenAI, plus ``split``.

        ``chat_template_kwargs`` goes to the template. Raises what ``APIServer.generate``
        raises.
        """
        messages: Messages = kwargs.pop("messages")
        if kwargs.pop("tools", None):
            raise ConfigError("tools: tool calling is not part of this version")
        kwargs.pop("tool_choice", None)
        prompt_text = self._render(messages, kwargs.pop("chat_template_kwargs", None))
        outputs, nodes = await self._sample(
            prompt_text, encode_prompt(self.tokenizer, prompt_text), kwargs
        )
        choices = [
            {
                "index": i,
                "finish_reason": output.finish_reason,
                "message": {"role": "assistant", "content": self._visible_text(output)},
            }
            for i, output in enumerate(outputs)
        ]
        completion = chat_completion_of(
            self._envelope("chatcmpl", "chat.completion", choices, outputs)
        )
        self._nodes_of[completion.id] = nodes
        return completion

    async def completion(self, **kwargs: Any) -> Completion:
        """``prompt`` (text, or token ids) and sampling parameters, plus ``split``."""
        prompt = kwargs.pop("prompt")
        if isinstance(prompt, str):
            prompt_text, ids = prompt, list(self.tokenizer.encode(prompt))
        else:
            ids = list(prompt)
            prompt_text = self.tokenizer.decode(ids, skip_special_tokens=False)
        outputs, nodes = await self._sample(prompt_text, ids, kwargs)
        choices = [
            {
                "index": i,
                "finish_reason": output.finish_reason,
                "text": self._visible_text(output),
                "logprobs": None,
            }
            for i, output in enumerate(outputs)
        ]
        completion = completion_of(self._envelope("cmpl", "text_completion", choices, outputs))
        self._nodes_of[completion.id] = nodes
        return completion

    async def get_logprobs(
        self,
        prompt: str | None = None,
        messages: Messages | None = None,
        input_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Logprobs of a given sequence; exactly one of the three says which."""
        if input_ids is None and messages is not None:
            input_ids = encode_prompt(self.tokenizer, self._render(messages, None))
        elif input_ids is None and prompt is not None:
            input_ids = self.tokenizer.encode(prompt)
        if input_ids is None:
            raise ConfigError("get_logprobs needs prompt, messages or input_ids")
        return await self.server.get_logprobs(
            input_ids=without_doubled_bos(list(input_ids), self._bos()), **kwargs
        )

    # --- what was sampled -------------------------------------------------------------

    def nodes_for(self, completion: ChatCompletion | Completion) -> list[SequenceNode]:
        """The node of each choice, in choice order, as it was when the call returned."""
        return list(self._nodes_of[completion.id])

    def get_state(self) -> dict[str, Any]:
        """``{"nodes": [...]}``, or ``{"sequences": ..., "tree": ...}`` of a tree."""
        return self._sequences.state()

    def reset(self) -> None:
        """Forget every sequence."""
        self._sequences = SequenceTree() if self.track_tree else SequenceList()
        self._nodes_of = {}

    # --- parts ------------------------------------------------------------------------

    def _bos(self) -> int | None:
        return getattr(self.tokenizer, "bos_token_id", None)

    def _render(self, messages: Messages, template_kwargs: Mapping[str, Any] | None) -> str:
        return render(
            self.tokenizer,
            messages,
            preserve_think_blocks=self.preserve_think_blocks,
            template_kwargs=template_kwargs,
        )

    async def _sample(
        self, prompt_text: str, prompt_ids: list[int], kwargs: dict[str, Any]
    ) -> tuple[list[Generation], list[SequenceNode]]:
        prompt_ids = without_doubled_bos(prompt_ids, self._bos())
        sequences = self._sequences  # a reset() during the call must not get these nodes
        extension = longest_extension(
            sequences.candidates(),
            prompt_text,
            prompt_ids,
            lambda text: encode_suffix(self.tokenizer, text),
        )
        input_ids = prompt_ids if extension is None else extension.input_ids
        params = sampling_params(kwargs)
        outputs = await self.server.generate(
            input_ids, prompt=prompt_text, split=kwargs.get("split", "train"), **params
        )
        parent = None if extension is None else extension.parent
        nodes = [
            sequences.add(
                parent,
                output,
                prompt_text
                + raw_continuation(self.tokenizer, output.prompt_ids, output.tokens),
            )
            for output in outputs
        ]
        return outputs, nodes

    def _visible_text(self, output: Generation) -> str:
        return str(self.tokenizer.decode(output.tokens, skip_special_tokens=True))

    def _envelope(
        self,
        prefix: str,
        kind: str,
        choices: list[dict[str, Any]],
        outputs: Sequence[Generation],
    ) -> dict[str, Any]:
        prompt = len(outputs[0].prompt_ids) if outputs else 0
        sampled = sum(len(output.tokens) for output in outputs)
        return {
            "id": f"{prefix}-{uuid.uuid4()}",
            "object": kind,
            "created": int(time.time()),
            "model": self.server.config.model_name,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": sampled,
                "total_tokens": prompt + sampled,
            },
        }
