"""Chat session that records token-exact rows for training.

    messages -> prompt text and ids -> longest earlier sequence -> generate -> nodes

An environment calls it like an OpenAI client and reads the rows with ``nodes_for``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.pictures import pictures_in
from atroposlib.generation.chat.reply import WholeTexts, message_of, sample_text
from atroposlib.generation.chat.special_tokens import remove_guards
from atroposlib.generation.chat.template import (
    Messages,
    decode_after,
    encode_after,
    encode_prompt,
    load_tokenizer,
    plain_message,
    render,
    require_known_ids,
    text_of_ids,
)
from atroposlib.generation.chat.tool_call_translator import ToolCallTranslator
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.sampling.generation import (
    Generation,
    with_configured,
    without_doubled_bos,
)
from atroposlib.generation.sessions.dummy import DummyManagedServer
from atroposlib.generation.sessions.recording import record_nodes
from atroposlib.generation.sessions.sample import (
    ManagedServerAdapter,
    SamplingServer,
    pop_template_kwargs,
    sample_chat,
    sample_tokens,
)
from atroposlib.generation.sessions.sequences import (
    SequenceList,
    SequenceNode,
    SequenceSample,
    SequenceTree,
    extended_by_text,
    extended_by_tokens,
)
from atroposlib.text.parts import cut_at_stop, opening_of

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

__all__ = ["DummyManagedServer", "ManagedServer", "ManagedServerAdapter", "SequenceNode"]

logger = logging.getLogger(__name__)

DEBUG_VARIABLE = "ATROPOS_DEBUG_REQUESTS"


def managed_over(
    server: Any,
    tokenizer: Any,
    track_tree: bool,
    tool_parser: str | None,
    preserve_think_blocks: bool,
) -> ManagedServer | DummyManagedServer:
    """A session over ``server``, with placeholder tokens if the server returns text only."""
    if not getattr(server, "returns_tokens", True):
        return DummyManagedServer(server, tokenizer, track_tree)
    return ManagedServer(server, tokenizer, track_tree, tool_parser, preserve_think_blocks)


class ManagedServer:
    """Chat and completions with recorded tokens, masks, logprobs and versions.

    Every choice becomes a :class:`SequenceNode`. A prompt that continues an earlier sequence
    extends it, and the earlier samples stay trained. A prompt whose template rewrote an
    earlier turn starts a new sequence, and the earlier sequence is kept. Calls may be
    concurrent: :meth:`nodes_for` returns the nodes of a call.

    Args:
        server: any object with ``config`` and ``tokens_and_logprobs_completion``.
        tokenizer: tokenizer of the model; None uses the server's, or loads the tokenizer of
            ``model_name``.
        track_tree: record every turn as a node with a link to its parent.
        tool_parser: format of the tool calls, for example "hermes". None leaves tools out of
            the prompt and calls in the text. Raises ConfigError for an unknown name.
        preserve_think_blocks: keep earlier ``<think>`` blocks that the chat template would
            drop, so that multi-turn sequences of thinking models extend.
    """

    def __init__(
        self,
        server: APIServer | SamplingServer,
        tokenizer: Any = None,
        track_tree: bool = False,
        tool_parser: str | None = None,
        preserve_think_blocks: bool = False,
    ) -> None:
        self.server = server
        self.track_tree = track_tree
        self.tool_parser = tool_parser
        self.preserve_think_blocks = preserve_think_blocks
        if tokenizer is not None:
            self.tokenizer = tokenizer
            if hasattr(server, "offer_tokenizer"):
                server.offer_tokenizer(tokenizer)
        self._warned_of_tools = False
        self._translator: ToolCallTranslator | None = None
        if tool_parser:
            self._translator = ToolCallTranslator(self.tokenizer, tool_parser)
        self._sequences: SequenceList | SequenceTree
        self._nodes_of: dict[str, list[SequenceNode]] = {}
        self.reset()

    @cached_property
    def tokenizer(self) -> Any:
        of_server = getattr(self.server, "tokenizer", None)
        return load_tokenizer(self.server.config) if of_server is None else of_server

    # --- calls ----------------------------------------------------------------------

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """``messages`` and sampling parameters as for OpenAI, plus ``split``.

        ``tools`` and ``tool_choice`` ("auto", "none", "required") need a tool parser.
        ``chat_template_kwargs``, also inside ``extra_body``, is passed to the template. With
        pictures the server renders the prompt, as in :func:`sample_chat`.

        Raises ConfigError for parts that are neither text nor pictures or ``stream``,
        TokensMissing without token ids and a logprob for each, and as ``APIServer.generate``.
        """
        from atroposlib.generation.sessions import replies  # imports the openai package

        await self._load_tokenizer()
        messages: Messages = kwargs.pop("messages")
        images = pictures_in(messages)
        tools = None if images else self._active_tools(kwargs.pop("tools", None))
        tool_choice = "auto" if images else kwargs.pop("tool_choice", None) or "auto"
        opening = ""
        if images:
            outputs, nodes = await self._sample_pictures(messages, images, kwargs)
        else:
            prompt_text = self._render(messages, tools, pop_template_kwargs(kwargs))
            outputs, nodes = await self._sample(
                prompt_text, lambda: encode_prompt(self.tokenizer, prompt_text), kwargs
            )
            opening = _opening(messages, prompt_text)
        stop = with_configured(kwargs, self.server.config).get("stop")
        if tool_choice == "none":
            tools = None
        choices = [
            {"index": i, **self._chat_choice(output, opening, stop, tools, tool_choice)}
            for i, output in enumerate(outputs)
        ]
        completion = replies.chat_reply(self.server.config.model_name, choices, outputs)
        self._nodes_of[completion.id] = nodes
        return completion

    async def completion(self, **kwargs: Any) -> Completion:
        """``prompt`` (text, or token ids) and sampling parameters, plus ``split``."""
        from atroposlib.generation.sessions import replies  # imports the openai package

        await self._load_tokenizer()
        prompt = kwargs.pop("prompt")
        if isinstance(prompt, str):
            outputs, nodes = await self._sample(
                prompt, lambda: self.tokenizer.encode(prompt), kwargs
            )
        else:
            text = text_of_ids(self.tokenizer, prompt, skip_special=False)
            outputs, nodes = await self._sample(text, None, kwargs, prompt)
        stop = with_configured(kwargs, self.server.config).get("stop")
        choices = [
            {
                "index": i,
                "finish_reason": output.finish_reason,
                "text": cut_at_stop(self._text_of(output, skip_special=True), stop),
                "logprobs": None,
            }
            for i, output in enumerate(outputs)
        ]
        completion = replies.text_reply(self.server.config.model_name, choices, outputs)
        self._nodes_of[completion.id] = nodes
        return completion

    async def get_logprobs(
        self,
        prompt: str | None = None,
        messages: Messages | None = None,
        input_ids: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Logprobs of a given sequence: ``prompt``, ``messages`` or ``input_ids``.

        Raises ConfigError without a sequence, NotImplementedError if the server lacks the
        call.
        """
        await self._load_tokenizer()
        if input_ids is None and messages is not None:
            ended = {"continue_final_message": False, **pop_template_kwargs(kwargs)}
            prompt = self._render(messages, None, ended)
            input_ids = encode_prompt(self.tokenizer, prompt)
            prompt = remove_guards(prompt)
        elif input_ids is None and prompt is not None:
            input_ids = self.tokenizer.encode(prompt)
        if input_ids is None:
            raise ConfigError("get_logprobs needs prompt, messages or input_ids")
        ask, name = getattr(self.server, "get_logprobs", None), type(self.server).__name__
        if ask is None:
            raise NotImplementedError(f"{name} does not implement get_logprobs")
        kwargs["input_ids"] = without_doubled_bos(list(input_ids), self._bos())
        return dict(await ask(**kwargs, **({} if prompt is None else {"prompt": prompt})))

    async def prompt_of(self, **kwargs: Any) -> tuple[str, list[int]]:
        """Text and ids of the prompt that ``chat_completion(**kwargs)`` would send now."""
        await self._load_tokenizer()
        tools = self._active_tools(kwargs.get("tools"))
        text = self._render(kwargs["messages"], tools, pop_template_kwargs(kwargs))
        ids = self._known_prefix(text, lambda: encode_prompt(self.tokenizer, text), ())[1]
        return remove_guards(text), ids

    # --- samples -------------------------------------------------------------

    def nodes_for(self, completion: ChatCompletion | Completion) -> list[SequenceNode]:
        """The node of each choice at the return of the call, in choice order."""
        return list(self._nodes_of[completion.id])

    def get_state(self) -> dict[str, Any]:
        """``{"nodes": [...]}``, or ``{"sequences": ..., "tree": ...}`` of a tree.

        Nodes are in the order in which calls returned, choices of a call in choice order; a
        continued sequence keeps its place. For concurrent calls use ``nodes_for``.
        """
        return self._sequences.state()

    def reset(self) -> None:
        """Drop every sequence. Nodes of calls that are still running are not added later."""
        self._sequences = SequenceTree() if self.track_tree else SequenceList()
        self._nodes_of = {}
        self._whole_texts = WholeTexts()

    # --- parts ------------------------------------------------------------------------

    async def _load_tokenizer(self) -> None:
        if "tokenizer" not in vars(self):
            await asyncio.to_thread(lambda: self.tokenizer)  # seconds: not on the event loop

    def _bos(self) -> int | None:
        return getattr(self.tokenizer, "bos_token_id", None)

    def _active_tools(self, tools: Sequence[Any] | None) -> list[Any] | None:
        if tools and self._translator is None:
            if not self._warned_of_tools:  # once, not at every turn
                logger.warning("tools are left out: this session has no tool_parser")
            self._warned_of_tools = True
            return None
        return list(tools) if tools else None

    def _render(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> str:
        if self._translator is not None:
            messages = self._translator.convert_messages_for_template(messages)
        return render(
            self.tokenizer,
            [
                self._whole_texts.with_stop_string(plain_message(message))
                for message in messages
            ],
            preserve_think_blocks=self.preserve_think_blocks,
            tools=tools,
            template_kwargs=template_kwargs,
            guard=True,
        )

    def _known_prefix(
        self, prompt_text: str, encode: Callable[[], Sequence[int]] | None, ids: Sequence[int]
    ) -> tuple[SequenceNode | None, list[int]]:
        """The sequence that the prompt continues, and the ids to send.

        Ids of the caller (no ``encode``) are sent unchanged. For a text that continues a
        sequence only the new part is encoded.
        """
        known = self._sequences.candidates()
        if encode is not None:
            node = extended_by_text(known, prompt_text)
            if node is not None:
                rest = prompt_text[len(node.full_text) :]
                return node, node.tokens + encode_after(self.tokenizer, node.tokens, rest)
            ids = encode()
        ids = without_doubled_bos(list(ids), self._bos())
        return extended_by_tokens(known, ids), ids

    async def _sample(
        self,
        prompt_text: str,
        encode: Callable[[], Sequence[int]] | None,
        kwargs: dict[str, Any],
        ids: Sequence[int] = (),
    ) -> tuple[list[Generation], list[SequenceNode]]:
        if kwargs.get("stream"):
            raise ConfigError("stream: completions are returned whole; leave it out")
        # Nodes of this call must not appear after a reset() during it.
        sequences = self._sequences
        parent, input_ids = self._known_prefix(prompt_text, encode, ids)
        outputs = await sample_tokens(self.server, prompt_text, input_ids, kwargs)
        return outputs, self._keep(sequences, parent, prompt_text, outputs)

    async def _sample_pictures(
        self, messages: Messages, images: Sequence[str], kwargs: dict[str, Any]
    ) -> tuple[list[Generation], list[SequenceNode]]:
        sequences = self._sequences
        outputs = await sample_chat(self.server, messages, images, kwargs)
        ids = outputs[0].prompt_ids
        parent = extended_by_tokens(sequences.candidates(), ids, images)
        text = text_of_ids(self.tokenizer, ids, skip_special=False)
        return outputs, self._keep(sequences, parent, text, outputs)

    def _keep(
        self,
        sequences: SequenceList | SequenceTree,
        parent: SequenceNode | None,
        prompt_text: str,
        outputs: list[Generation],
    ) -> list[SequenceNode]:
        for output in outputs:
            require_known_ids(self.tokenizer, output.tokens)
        samples = [
            SequenceSample(output, prompt_text + self._text_of(output, skip_special=False))
            for output in outputs
        ]
        nodes = sequences.add(parent, samples)
        record_nodes(nodes, parent)
        if os.environ.get(DEBUG_VARIABLE) == "1":
            for sample in samples:
                logger.warning("%s: %r", sample.generation.finish_reason, sample.full_text)
        return nodes

    def _text_of(self, output: Generation, *, skip_special: bool) -> str:
        return decode_after(
            self.tokenizer, output.prompt_ids, output.tokens, skip_special=skip_special
        )

    def _chat_choice(
        self,
        output: Generation,
        opening: str,
        stop: str | Sequence[str] | None,
        tools: list[Any] | None,
        tool_choice: Any,
    ) -> dict[str, Any]:
        """Finish reason and message of a choice. The node keeps the raw tokens."""
        translator = self._translator if tools else None
        if translator is None:
            sampled = sample_text(self.tokenizer, output.prompt_ids, output.tokens)
        else:
            sampled = translator.decode_with_tool_awareness(
                output.tokens, has_tools=True, before=output.prompt_ids
            )
        whole, cut = opening + sampled, opening + cut_at_stop(sampled, stop)
        if translator is None:
            self._whole_texts.keep(cut, whole)
        message = message_of(whole, cut, translator, tools, tool_choice)
        called = "tool_calls" in message and output.finish_reason != "length"
        return {
            "finish_reason": "tool_calls" if called else output.finish_reason,
            "message": message,
        }


def _opening(messages: Messages, prompt_text: str) -> str:
    """The mark by which the generation prompt opened the reasoning of the reply."""
    last = plain_message(messages[-1]) if messages else {}
    return "" if last.get("role") == "assistant" else opening_of(prompt_text)
