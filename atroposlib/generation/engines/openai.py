"""Clients over the OpenAI protocol: text only, and the base of the token engines."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from atroposlib.errors import (
    ConfigError,
    ContextFull,
    InferenceRefused,
    InferenceUnavailable,
    TokensMissing,
)
from atroposlib.generation.chat.template import load_tokenizer
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.http import served_model, why_refused
from atroposlib.generation.sampling.generation import (
    FourTuple,
    Generation,
    four_tuple,
    prompt_ids,
    request_options,
    token_usage,
    with_choice_seed,
    with_configured,
)
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.generation.sampling.reply_form import ReplyPart, checked_choices
from atroposlib.generation.sampling.resume import Decode
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.utils.tokenizers.loading import is_path

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)
C = TypeVar("C", "ChatCompletion", "Completion")
T = TypeVar("T")
Payload = dict[str, Any]
# Capitals, accents and signs distinguish vocabularies of characters too.
SENTENCE = "What is 12 + 7? [The answer]: {19}, as anyone can see; naïve #42 = 'x'\n"


def request_body(kwargs: Mapping[str, Any]) -> Payload:
    """JSON body of a request from keyword arguments of the openai package.

    ``extra_body`` is merged in; options of the client are left out. ``stream``: ConfigError.
    """
    if kwargs.get("stream"):
        raise ConfigError("stream: completions are returned whole; leave it out")
    client_only = ("extra_body", "extra_headers", "extra_query", "timeout", "stream")
    body = {k: v for k, v in kwargs.items() if k not in client_only and v is not None}
    return {**body, **(kwargs.get("extra_body") or {})}


def join_choices(parts: Iterable[C]) -> C:
    """A completion with the choices of all parts, numbered in order, and their usage summed."""
    rest: list[Any]
    first, *rest = parts
    if not rest:
        return first
    joined: Any = first.model_copy(deep=True)  # the backend may hold a reference to it
    for part in rest:
        joined.choices.extend(part.choices)
    for i, choice in enumerate(joined.choices):
        choice.index = i
    usages = [part.usage for part in (joined, *rest) if part.usage is not None]
    if usages:
        joined.usage = usages[0]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            setattr(joined.usage, name, sum(getattr(usage, name, 0) or 0 for usage in usages))
    return cast(C, joined)


class OpenAICompatibleServer(APIServer):
    """Base of the backends with OpenAI's routes for chat and text completions.

    Requests use the connection pool of the server. The openai package only supplies the
    response types. It is imported at the first response, which takes about a second.
    """

    #: Whether a response showed that the server ignores ``n``; see
    #: ``config.n_kwarg_is_ignored``.
    n_is_ignored = False
    #: Directory or hub name of the served model or its tokenizer, if the server lists it.
    directory: str | None = None
    identified = False

    async def _check_health(self) -> bool:
        with suppress(InferenceUnavailable):
            return await super()._check_health() and await self.identify()
        return False

    async def identify(self) -> bool:
        """Ask once for the :func:`served_model` and set unset names; always True."""
        has_list = self.returns_tokens or self._parts.base_url.endswith("/v1")
        if not self.identified and not self._parts.is_official_openai and has_list:
            name, tokenizer = self.config.model_name, self.config.tokenizer_name
            known, self.directory = await served_model(
                self._parts.http, self._parts.root_url, name
            )
            if self.directory and tokenizer == "none" and not is_path(name):
                tokenizer = self.directory
            names = {"model_name": known, "tokenizer_name": tokenizer}
            self.config = self.config.model_copy(update=names)
            await self._check_served()
            self.identified = True
        return True

    async def _check_served(self) -> None:
        """Check the caller's expectations of the served model."""

    async def _call(self, hook: Callable[..., Awaitable[T]], kwargs: dict[str, Any]) -> T:
        """Call ``hook``; a refusal of the model's name, or of its tokens, names both sides."""
        try:
            return await super()._call(hook, kwargs)
        except ContextFull:
            raise
        except InferenceRefused as refused:
            status, detail, reason = refused.status_code, refused.detail, None
            model = self.config.model_name
            if "token ids" in detail or "out of vocabulary" in detail:
                tokenizer = vars(self).get("tokenizer")
                name = getattr(tokenizer, "name_or_path", "") or self.config.tokenizer_name
                reason = (
                    f"the tokenizer {name} has more tokens than the model {model}: start the "
                    "server with the model of --env.tokenizer_name"
                )
            elif status == 404 or status == 400 and model in detail:
                with suppress(InferenceUnavailable):
                    reason = await why_refused(self._parts.http, self._parts.root_url, model)
            if reason is None:
                raise
            raise InferenceRefused(status, f"{reason} ({detail})") from refused

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        payloads = await self._complete("chat/completions", kwargs)
        return join_choices(map(chat_completion_of, payloads))

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        payloads = await self._complete("completions", kwargs)
        return join_choices(map(completion_of, payloads))

    async def _complete(self, path: str, kwargs: Mapping[str, Any]) -> list[Payload]:
        """Payloads with ``n`` choices together: several from servers that ignore ``n``."""
        body = request_body(kwargs)
        n = int(body.get("n") or 1)

        async def ask(count: int, first: int = 0) -> Payload:
            sent = {**with_choice_seed(body, first), "n": count} if "n" in body else body
            return await self._request_choices(path, sent, kwargs)

        if n > 1 and (self.n_is_ignored or self.config.n_kwarg_is_ignored):
            return await gather_or_cancel(ask(1, i) for i in range(n))
        first = await ask(n)
        returned = len(first["choices"])
        if returned == n:
            return [first]
        if returned != 1:
            raise ConfigError(
                f"{self._parts.root_url} returned {returned} choices for n={n}; "
                "set n_kwarg_is_ignored true for this server"
            )
        logger.warning(
            "%s ignores n: sending one request per choice from now", self._parts.root_url
        )
        self.n_is_ignored = True
        return [first, *await gather_or_cancel(ask(1, i) for i in range(1, n))]

    async def _request_choices(
        self, path: str, body: Payload, kwargs: Mapping[str, Any]
    ) -> Payload:
        if self._parts.is_official_openai and not self._parts.http.headers:
            raise ConfigError(
                "api_key: the official OpenAI API requires one; set it or OPENAI_API_KEY, "
                "or set base_url to another server"
            )
        url = f"{self._parts.base_url}/{path}"
        reply = await self._parts.http.post(url, body, **request_options(kwargs))
        payload = checked_choices(ReplyPart(reply.payload, url), KIND_OF[path])
        if any(choice.get("finish_reason") == "abort" for choice in payload["choices"]):
            # Text cannot be resumed token by token, and an incomplete reply must not be used.
            raise InferenceUnavailable(f"{url}: aborted, as when the server gets new weights")
        return payload


KIND_OF = {"chat/completions": "chat.completion", "completions": "text_completion"}
ID_PREFIXES = {"chat.completion": "chatcmpl", "text_completion": "cmpl"}


def completion_payload(
    kind: str, model: str, choices: list[Payload], prompt_tokens: int, completion_tokens: int
) -> Payload:
    """A completion of ``kind``, the value of its field ``object``, made here."""
    return {
        "id": f"{ID_PREFIXES[kind]}-{uuid.uuid4()}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": token_usage(prompt_tokens, completion_tokens),
    }


def chat_completion_of(payload: Payload) -> ChatCompletion:
    """The openai package's type. Servers add and omit fields; see ``reply_form``."""
    from openai.types.chat import ChatCompletion

    return ChatCompletion.model_construct(**payload)


def completion_of(payload: Payload) -> Completion:
    """Text completion, in the form of :func:`chat_completion_of`."""
    from openai.types import Completion

    return Completion.model_construct(**payload)


class OpenAIServer(OpenAICompatibleServer):
    """Any OpenAI-compatible API, for evaluation and data generation.

    Its responses have no token ids, so they cannot be trained on token-exactly.
    """

    returns_tokens = False

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> FourTuple:
        raise NotImplementedError(
            "OpenAIServer returns no token ids or logprobs; "
            "use server_type vllm, sglang or trl for rows that are trained on"
        )


class TokenServer(OpenAICompatibleServer):
    """Base of the engines that take token ids and return token ids with logprobs."""

    accepts_reasoning = False
    _expected: tuple[Any, str] | None = None  # the caller's tokenizer and its name

    def __init__(
        self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None
    ) -> None:
        if not config.base_url:
            raise ConfigError(
                f"base_url: a server of type {config.server_type} needs an address, "
                "such as http://localhost:9001/v1"
            )
        super().__init__(config, reasoning_config)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of ``tokenizer_name``, else of ``model_name``; loaded when first read."""
        return load_tokenizer(self.config)

    def offer_tokenizer(self, tokenizer: Any) -> None:
        """Set the tokenizer if there is none, so that none has to be loaded."""
        vars(self).setdefault("tokenizer", tokenizer)

    async def require_tokenizer(self, tokenizer: Any, name: str) -> None:
        """Compare the tokens of a sentence, as the trainer does, if the server has /tokenize.

        An absent server is asked as soon as it answers.
        """
        self._expected = tokenizer, name
        if self.identified:
            await self._check_served()

    async def _check_served(self) -> None:
        if self._expected is None:
            return
        tokenizer, name = self._expected
        model, ours = self.config.model_name, list(tokenizer.encode(SENTENCE))
        url, body = f"{self._parts.root_url}/tokenize", {"model": model, "prompt": SENTENCE}
        theirs = await self._parts.http.field("POST", url, "tokens", body)
        if isinstance(theirs, list) and theirs and theirs != ours:
            raise ConfigError(
                f"tokenizer {name} is not that of model {model} at {self._parts.root_url}: the same "
                f"sentence is {len(ours)} tokens here and {len(theirs)} there, and only "
                f"the first {len(os.path.commonprefix([ours, theirs]))} are equal; set "
                "--env.tokenizer_name to the directory of that model, or leave it out"
            )

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> FourTuple:
        """Token completion; a continuation that a weight update aborts is resumed."""
        ids = await self._prompt_ids(kwargs)
        kwargs = with_configured(kwargs, self.config)
        return four_tuple(await self.generate(**{**kwargs, "input_ids": ids}))

    async def decoder(self) -> Decode:
        await self._load_tokenizer()
        return lambda ids: str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    async def _load_tokenizer(self) -> None:
        if "tokenizer" not in vars(self):
            await asyncio.to_thread(lambda: self.tokenizer)  # seconds: not on the event loop

    async def _prompt_ids(self, kwargs: dict[str, Any]) -> list[int]:
        """The ids to send. A tokenizer is loaded only for text, or for a possible double BOS."""
        input_ids = kwargs.get("input_ids")
        if input_ids is None or (len(input_ids) > 1 and input_ids[0] == input_ids[1]):
            await self._load_tokenizer()
        return prompt_ids(kwargs, vars(self).get("tokenizer"))

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> FourTuple:
        ids = await self._prompt_ids(kwargs)
        return four_tuple(await self._generate_wrapper(**{**kwargs, "input_ids": ids}))


def expect_outputs(outputs: list[Generation], n: int, where: str) -> list[Generation]:
    if len(outputs) != n:
        raise TokensMissing(f"{where}: {len(outputs)} outputs for n={n}")
    return outputs


def take_top_k(kwargs: dict[str, Any]) -> int:
    """Remove and return the number of alternatives per position; 0: only the given token.

    ``top_k`` is not the sampling parameter here.
    """
    counts = (kwargs.pop("top_k", None), kwargs.pop("top_logprobs", None))
    return max(0, int(next((k for k in counts if k is not None), 1)))


def logprobs_result(ids: list[int], rows: list[dict[int, float]]) -> dict[str, Any]:
    """Result of ``get_logprobs``. ``rows``: logprob by token id, for each position."""
    return {
        "prompt_tokens": ids,
        "prompt_topk_token_ids": [list(row) for row in rows],
        "prompt_topk_logprobs": [list(row.values()) for row in rows],
    }
