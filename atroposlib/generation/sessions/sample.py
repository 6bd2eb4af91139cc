"""Token sampling of a session from servers of either interface, and its client face.

A server needs ``config`` and ``tokens_and_logprobs_completion(**kwargs)``, which returns
``(prompt ids, [tokens], [logprobs], [finish reason])``. A server with ``generate`` also
returns the policy version of each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.generation.chat.pictures import chat_content
from atroposlib.generation.chat.special_tokens import remove_guards
from atroposlib.generation.chat.template import PROMPT_END, Messages, plain_message
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.returned import note_returned
from atroposlib.generation.sampling.generation import (
    UNKNOWN_VERSION,
    Generation,
    finish_reason_text,
    from_four_tuple,
    sampling_params,
    span_sampling,
    token_versions,
    with_configured,
    with_version,
)
from atroposlib.generation.sampling.reply_form import ReplyPart, expected_form

_TOKENS_CALL = "tokens_and_logprobs_completion"
_REQUEST_OPTIONS = ("split", "timeout", "extra_headers")  # not sampling parameters


class SamplingServer(Protocol):
    """Servers of the original's interface, and stand-ins of tests."""

    config: Any

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any: ...


async def sample_tokens(
    server: SamplingServer | APIServer,
    prompt_text: str,
    input_ids: list[int],
    kwargs: Mapping[str, Any],
) -> list[Generation]:
    """Continuations of ``input_ids``; ``kwargs`` are the caller's sampling parameters.

    The prompt ids of the result are the ids that the server reports. Raises TokensMissing for
    a result without token ids, or without a logprob per token.
    """
    kwargs = with_configured(kwargs, server.config)
    prompt_text = remove_guards(prompt_text)
    if has_generate(server):
        request = {k: kwargs[k] for k in _REQUEST_OPTIONS if kwargs.get(k) is not None}
        outputs: list[Generation] = await server.generate(  # type: ignore[union-attr]
            input_ids, prompt=prompt_text, **request, **sampling_params(kwargs)
        )
    else:
        outputs = _generations(
            await server.tokens_and_logprobs_completion(
                **{**kwargs, "prompt": prompt_text, "input_ids": input_ids}
            ),
            noted=isinstance(server, APIServer),
        )
    if not outputs:
        raise TokensMissing(f"{type(server).__name__} returned no output")
    sampling = span_sampling(kwargs)
    return [replace(output, sampling=sampling) for output in outputs]


async def sample_chat(
    server: Any, messages: Messages, images: Sequence[str], kwargs: Mapping[str, Any]
) -> list[Generation]:
    """Replies to ``messages`` with ``images``, whose placeholder tokens only the server knows.

    The server renders the prompt and returns its ids, as vLLM does on request. Raises
    TokensMissing for a reply without ids, ConfigError for tools.
    """
    kwargs = with_configured(kwargs, server.config)
    if kwargs.pop("tools", None):
        raise ConfigError("tools: a token-exact chat has tools or pictures, not both")
    kwargs.pop("tool_choice", None)
    options = {k: kwargs[k] for k in _REQUEST_OPTIONS if kwargs.get(k) is not None}
    version = getattr(server, "announced_version", None)
    plain = [plain_message(message) for message in messages]
    completion = await server.chat_completion(
        messages=[
            {**message, "content": chat_content(message.get("content"))} for message in plain
        ],
        **{**sampling_params(kwargs), **options},
        logprobs=True,
        return_token_ids=True,
    )
    ids = getattr(completion, "prompt_token_ids", None)
    if ids is None or any(not hasattr(choice, "token_ids") for choice in completion.choices):
        raise TokensMissing(
            f"{server.config.base_url} returned no token ids of a prompt with pictures, so its "
            "replies cannot be trained on: vLLM returns them; with server_type openai any "
            "server can be evaluated"
        )
    sampling = span_sampling(kwargs)
    where = f"{str(server.config.base_url).rstrip('/')}/chat/completions"
    with expected_form(where):
        prompt = ReplyPart(ids, where, "prompt_token_ids").token_ids()
        outputs = [
            Generation(
                prompt_ids=prompt,
                tokens=ReplyPart(
                    choice.token_ids, where, f"choices[{i}].token_ids"
                ).token_ids(),
                logprobs=[
                    entry.logprob for entry in getattr(choice.logprobs, "content", None) or ()
                ],
                versions=_choice_versions(choice),
                finish_reason=finish_reason_text(choice.finish_reason),
                sampling=sampling,
                images=images,
            )
            for i, choice in enumerate(completion.choices)
        ]
    return [with_version(output, version) for output in outputs]


def _choice_versions(choice: Any) -> list[int]:
    """Version of each token, as the local server reports them; else unknown."""
    spans = getattr(choice, "weight_versions", None)
    return token_versions(len(choice.token_ids), spans, UNKNOWN_VERSION)


def has_generate(server: object) -> bool:
    """Whether to call ``generate`` of this server.

    The class is inspected and not the object: a mock has every attribute, and if a test
    replaced the older call of an object, that call is used.
    """
    return hasattr(type(server), "generate") and _TOKENS_CALL not in vars(server)


def _generations(answer: Any, *, noted: bool) -> list[Generation]:
    if not isinstance(answer, (tuple, list)) or len(answer) != 4:
        raise TokensMissing(
            f"{_TOKENS_CALL} did not return (prompt ids, [tokens], [logprobs], "
            "[finish reason])"
        )
    prompt_ids, tokens, logprobs, reasons = answer
    if any(part is None for part in (prompt_ids, tokens, logprobs, reasons)) or any(
        row is None for row in [*tokens, *logprobs]
    ):
        raise TokensMissing("an output came without token ids or logprobs")
    if not noted:  # by its client, as the replies of every APIServer
        note_returned(None, "train", answer)
    return from_four_tuple(prompt_ids, tokens, logprobs, reasons)


def pop_template_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of the chat template from ``kwargs`` and its ``extra_body``.

    Options of PROMPT_END are fields of the request, as for vLLM.
    """
    options: dict[str, Any] = {}
    extra = dict(kwargs.get("extra_body") or {})
    for fields in (extra, kwargs):
        options.update(fields.pop("chat_template_kwargs", None) or {})
        options.update({name: fields.pop(name) for name in PROMPT_END if name in fields})
    if kwargs.get("extra_body") is not None:
        kwargs["extra_body"] = extra
    return options


class ManagedServerAdapter:
    """Interface of ``openai.AsyncOpenAI`` over a managed session.

    ``chat.completions.create(...)`` and ``completions.create(...)`` work. ``post`` and
    ``copy`` would bypass the session and raise NotImplementedError.
    """

    def __init__(self, managed_server: Any, base_url: str) -> None:
        self.managed_server = managed_server
        self.base_url = base_url
        self.completions = SimpleNamespace(create=managed_server.completion)
        self.chat = SimpleNamespace(
            completions=SimpleNamespace(create=managed_server.chat_completion)
        )

    def post(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("post() would bypass the managed session")

    def copy(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("copy() would bypass the managed session")
