"""vLLM and compatible servers: tokens in, tokens with logprobs and versions out.

There are three routes for token requests. Each route class only builds bodies and reads
payloads, without I/O.

    DemoRoute         POST /generate               the original's server, and our local server
    ScaleOutRoute     POST /inference/v1/generate  vLLM with --enable-scale-out
    CompletionsRoute  POST /v1/completions         any vLLM: token-id prompt, return_token_ids
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, get_args

from atroposlib.errors import InferenceRefused, InferenceUnavailable, TokensMissing
from atroposlib.generation.engines.http import read_reply
from atroposlib.generation.engines.openai import (
    TokenServer,
    expect_outputs,
    logprobs_result,
    take_top_k,
)
from atroposlib.generation.sampling.generation import (
    Generation,
    finish_reason_text,
    request_options,
    sampling_params,
    token_versions,
)
from atroposlib.generation.sampling.reply_form import (
    MAX_NUMBER,
    MAX_TOKEN_ID,
    READ_ERRORS,
    ReplyPart,
    expected_form,
    logprob_number,
    topk_rows,
    with_address,
)
from atroposlib.wire import LogprobKind
from atroposlib.wire.routing import experts_of

logger = logging.getLogger(__name__)

ROUTE_ABSENT_STATUS = frozenset({401, 403, 404, 405, 501})
SERVER_UNREADY_STATUS = frozenset({502, 503, 504})
VERSION_HEADER = "X-Weight-Version"
LOGPROB_KINDS = get_args(LogprobKind)
DEMO_COLUMNS = ("token_ids", "finish_reasons", "weight_versions", "routed_experts")


class VLLMServer(TokenServer):
    """OpenAI's routes for chat and completions, the first of ``TOKEN_ROUTES`` for tokens.

    Logprobs come from vLLM's report. For a temperature that is not 1 start vLLM with
    ``--logprobs-mode processed_logprobs``. Otherwise the logprobs belong to temperature 1
    and not of the distribution that was sampled from.
    """

    version_path = "/weight_info"
    _route: TokenRoute | None = None
    _has_weight_info = False

    @cached_property
    def _detect_lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        ids = list(kwargs["input_ids"])
        params = sampling_params(kwargs)
        route = await self._token_route()
        body = route.body(self.config.model_name, ids, {**params, **route.token_params})
        # Read before sampling: if weights change in between, the label is too old and not too
        # new, so staleness is never understated. Spans and the header take precedence.
        label = await self._weight_label()
        url = f"{self._parts.root_url}{route.path}"
        reply = await self._parts.http.post(url, body, **request_options(kwargs))
        label = reply.headers.get(VERSION_HEADER, label)
        try:
            outputs = route.read_generations(ReplyPart(reply.payload, url), ids, label)
        except READ_ERRORS as error:
            raise with_address(url, error) from error
        return expect_outputs(outputs, int(params["n"]), url)

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids = await self._prompt_ids(kwargs)
        wanted = {"prompt_logprobs": take_top_k(kwargs)}
        kwargs.setdefault("max_tokens", 1)
        params = {**sampling_params(kwargs), "n": 1, "temperature": 0.0, "top_p": 1.0}
        route = await self._token_route()
        body = route.body(self.config.model_name, ids, {**params, **wanted})
        url = f"{self._parts.root_url}{route.path}"
        reply = await self._parts.http.post(url, body)
        with expected_form(url):
            raw = route.read_prompt_logprobs(ReplyPart(reply.payload, url))
            with raw.reading("a list of logprobs by token id"):
                return logprobs_result(ids, topk_rows(raw.value))

    async def _token_route(self) -> TokenRoute:
        """The first route of this server, detected once and without generation.

        To an empty body a route returns 400, 422, or 500 (demo server), an absent route 404 or
        405, a disabled route 403.
        """
        if self._route is not None:
            return self._route
        async with self._detect_lock:
            if self._route is None:
                self._route = await self._detect_route()
                self._has_weight_info = await self._probe_weight_info()
                logger.info(
                    "%s: token requests go to %s", self._parts.root_url, self._route.path
                )
        return self._route

    async def _detect_route(self) -> TokenRoute:
        *candidates, fallback = TOKEN_ROUTES
        for route in candidates:
            url = f"{self._parts.root_url}{route.path}"
            status = (await self._parts.http.send("POST", url, json={})).status_code
            if status in SERVER_UNREADY_STATUS:
                raise InferenceUnavailable(f"POST {url}: status {status}")
            if status not in ROUTE_ABSENT_STATUS:
                return route
        return fallback

    async def _probe_weight_info(self) -> bool:
        response = await self._parts.http.send("GET", f"{self._parts.root_url}/weight_info")
        return response.status_code == 200 and VERSION_HEADER not in response.headers

    async def _weight_label(self) -> Any:
        """Version from GET /weight_info, for servers that set no version header."""
        if not self._has_weight_info:
            return None
        response = await self._parts.http.send("GET", f"{self._parts.root_url}/weight_info")
        try:
            payload = read_reply(response).payload
        except InferenceRefused:
            return None
        return payload.get("weight_version") if isinstance(payload, dict) else None


Body = dict[str, Any]


class TokenRoute(ABC):
    """A format of token requests."""

    path: ClassVar[str]
    #: Parameters that request the tokens and the logprob of each.
    token_params: ClassVar[Mapping[str, Any]]

    @abstractmethod
    def body(self, model: str, ids: list[int], params: Mapping[str, Any]) -> Body:
        """Request for ``ids`` (P,): sampling parameters, and parameters of the wanted output."""

    @abstractmethod
    def read_generations(
        self, reply: ReplyPart, ids: list[int], label: Any
    ) -> list[Generation]:
        """Outputs; ``label``: version of the whole response. Raises TokensMissing."""

    def read_prompt_logprobs(self, reply: ReplyPart) -> ReplyPart:
        """The raw per-position list, or null."""
        return reply.field("prompt_logprobs")


class DemoRoute(TokenRoute):
    """``{"prompt": {"prompt_token_ids": [...]}, "logprobs": 0, ...sampling}``."""

    path = "/generate"
    token_params = {"logprobs": 0}

    def body(self, model: str, ids: list[int], params: Mapping[str, Any]) -> Body:
        return {**params, "prompt": {"prompt_token_ids": ids}}

    def read_generations(
        self, reply: ReplyPart, ids: list[int], label: Any
    ) -> list[Generation]:
        rows = reply.value.get("logprobs")
        if rows is None:
            raise TokensMissing(f"{reply.where}: the response has no logprobs to train on")
        columns = [reply.value.get(name) or [None] * len(rows) for name in DEMO_COLUMNS]
        if {*map(len, columns)} != {len(rows)}:
            raise TokensMissing(f"{reply.where}: lists of different lengths in the response")
        kind = reply.value.get("logprob_kind")
        return [
            Generation(
                prompt_ids=ids,
                tokens=tokens,
                logprobs=logprobs,
                versions=token_versions(len(tokens), spans, label),
                finish_reason=finish_reason_text(reason),
                logprob_kind=kind if kind in LOGPROB_KINDS else None,
                routed_experts=routed and experts_of(routed, len(ids) + len(tokens)),
            )
            for row, sampled, reason, spans, routed in zip(rows, *columns)
            for tokens, logprobs in [_ids_and_logprobs(row, sampled, reply.where)]
        ]


class ChoicesRoute(TokenRoute):
    """Base of the routes whose outputs are choices in OpenAI's format."""

    @abstractmethod
    def logprobs_of(self, logprobs: ReplyPart) -> ReplyPart:
        """The logprob of each token, from the field ``logprobs`` of a choice."""

    def read_generations(
        self, reply: ReplyPart, ids: list[int], label: Any
    ) -> list[Generation]:
        choices = reply.field("choices").require().parts()
        by_index = sorted(choices, key=_index_of)
        return [self._generation(choice, reply, ids, label) for choice in by_index]

    def _generation(
        self, choice: ReplyPart, reply: ReplyPart, ids: list[int], label: Any
    ) -> Generation:
        tokens = choice.field("token_ids").require().token_ids()
        logprobs = choice.field("logprobs")
        values = self.logprobs_of(logprobs) if logprobs.value else logprobs
        spans = choice.field("weight_versions")
        spans = spans if spans.value else reply.field("weight_versions")
        prompt, routed = choice.field("prompt_token_ids"), choice.field("routed_experts").value
        return Generation(
            prompt_ids=prompt.token_ids() if prompt.value else list(ids),
            tokens=tokens,
            logprobs=values.require().numbers() if tokens or values.value else [],
            versions=token_versions(len(tokens), spans.value, label),
            finish_reason=finish_reason_text(choice.field("finish_reason").value),
            routed_experts=routed and experts_of(routed, len(ids) + len(tokens)),
        )


def _index_of(choice: ReplyPart) -> int:
    index = choice.field("index")
    with index.reading("a number"):
        return int(index.value or 0)


class ScaleOutRoute(ChoicesRoute):
    """``{"model", "token_ids": [...], "sampling_params": {...}}``."""

    path = "/inference/v1/generate"
    token_params = {"logprobs": 1}

    def body(self, model: str, ids: list[int], params: Mapping[str, Any]) -> Body:
        return {"model": model, "token_ids": ids, "sampling_params": params, "stream": False}

    def logprobs_of(self, logprobs: ReplyPart) -> ReplyPart:
        content = logprobs.field("content")
        if content.value is None:
            return content
        values = [entry.field("logprob").require().value for entry in content.parts()]
        return ReplyPart(values, content.where, content.name)


class CompletionsRoute(ChoicesRoute):
    """OpenAI's completions with a token-id prompt and vLLM's ``return_token_ids``."""

    path = "/v1/completions"
    token_params = {"logprobs": 1, "return_token_ids": True, "stream": False}

    def body(self, model: str, ids: list[int], params: Mapping[str, Any]) -> Body:
        return {"model": model, **params, "prompt": ids}

    def logprobs_of(self, logprobs: ReplyPart) -> ReplyPart:
        return logprobs.field("token_logprobs")

    def read_prompt_logprobs(self, reply: ReplyPart) -> ReplyPart:
        choices = reply.field("choices").require()
        first = choices.parts() or [ReplyPart(None, choices.where, "choices[0]")]
        return first[0].field("prompt_logprobs")


#: In order of preference: the first that a server has is used for all its token requests.
TOKEN_ROUTES: tuple[TokenRoute, ...] = (DemoRoute(), ScaleOutRoute(), CompletionsRoute())


def _ids_and_logprobs(row: Any, tokens: Any, where: str) -> tuple[list[int], list[float]]:
    """Tokens and logprobs (T,) of a row of {token id: logprob}, or of lists of these."""
    if tokens is not None and len(tokens) != len(row or []):
        raise TokensMissing(f"{where}: {len(tokens)} tokens with {len(row or [])} logprobs")
    ids: list[int] = []
    logprobs: list[float] = []
    for t, position in enumerate(row or []):
        entry = position[0] if isinstance(position, list) else position
        token = next(iter(entry or [""])) if tokens is None else str(tokens[t])
        if not entry or token not in entry:
            raise TokensMissing(f"{where}: no logprob of the token sampled at {t}")
        ids.append(int(token))
        logprobs.append(logprob_number(entry[token]))
        if not (0 <= ids[t] <= MAX_TOKEN_ID and abs(logprobs[t]) < MAX_NUMBER):
            raise TokensMissing(f"{where}: token {token} with logprob {logprobs[t]} at {t}")
    return ids, logprobs
