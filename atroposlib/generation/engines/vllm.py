"""vLLM, and servers that speak like it: tokens in, tokens with logprobs and versions out."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from atroposlib.errors import InferenceRefused, InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.http import read_reply
from atroposlib.generation.engines.token_server import (
    TokenServer,
    expect_outputs,
    take_top_k,
)
from atroposlib.generation.engines.vllm_protocols import TOKEN_ROUTES, TokenRoute, topk_lists
from atroposlib.generation.sampling.params import request_options, sampling_params
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.generation.sampling.types import Generation

logger = logging.getLogger(__name__)

ROUTE_ABSENT_STATUS = frozenset({401, 403, 404, 405, 501})
ROUTE_UNKNOWABLE_STATUS = frozenset({502, 503, 504})
VERSION_HEADER = "X-Weight-Version"


class VLLMServer(TokenServer):
    """Chat and completions go the OpenAI way; token requests go the best way there is.

    Logprobs are those that vLLM reports. With a temperature other than 1 start vLLM with
    ``--logprobs-mode processed_logprobs``, or they describe another distribution than the
    one that was sampled from.
    """

    def __init__(
        self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None
    ) -> None:
        super().__init__(config, reasoning_config)
        self._route: TokenRoute | None = None
        self._has_weight_info = False
        self._one_detects = asyncio.Lock()

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        ids = list(kwargs["input_ids"])
        params = sampling_params(kwargs)
        route = await self._token_route()
        body = route.generate_body(self.config.model_name, ids, params)
        # Asked before sampling: when weights change in between, the label is too old rather
        # than too new, and staleness is never understated. Spans and header say it better.
        label = await self._weight_label()
        url = f"{self.root_url}{route.path}"
        reply = await self.http.post(url, body, **request_options(kwargs))
        label = reply.headers.get(VERSION_HEADER, label)
        outputs = route.read_generations(reply.payload, ids, label)
        return expect_outputs(outputs, int(params["n"]), url)

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        ids = await self._prompt_ids(kwargs)
        wanted = take_top_k(kwargs)
        kwargs.setdefault("max_tokens", 1)
        params = {**sampling_params(kwargs), "n": 1, "temperature": 0.0, "top_p": 1.0}
        route = await self._token_route()
        body = route.logprobs_body(self.config.model_name, ids, wanted, params)
        reply = await self.http.post(f"{self.root_url}{route.path}", body)
        topk_ids, topk_logprobs = topk_lists(route.read_prompt_logprobs(reply.payload))
        return {
            "prompt_tokens": ids,
            "prompt_topk_token_ids": topk_ids,
            "prompt_topk_logprobs": topk_logprobs,
        }

    async def _token_route(self) -> TokenRoute:
        """The first route this server has, found out once and without generating.

        An empty body makes a route that exists complain about the body (400, 422, or 500 from
        the demo server) and one that does not answer 404, 405, or 403 when switched off.
        """
        if self._route is not None:
            return self._route
        async with self._one_detects:
            if self._route is None:
                self._route = await self._detect_route()
                self._has_weight_info = await self._answers_weight_info()
                logger.info("%s: token requests go to %s", self.root_url, self._route.path)
        return self._route

    async def _detect_route(self) -> TokenRoute:
        *candidates, fallback = TOKEN_ROUTES
        for route in candidates:
            url = f"{self.root_url}{route.path}"
            status = (await self.http.send("POST", url, json={})).status_code
            if status in ROUTE_UNKNOWABLE_STATUS:
                raise InferenceUnavailable(f"POST {url}: status {status}")
            if status not in ROUTE_ABSENT_STATUS:
                return route
        return fallback

    async def _answers_weight_info(self) -> bool:
        response = await self.http.send("GET", f"{self.root_url}/weight_info")
        return response.status_code == 200 and VERSION_HEADER not in response.headers

    async def _weight_label(self) -> Any:
        """GET /weight_info, for servers that have it and set no version header."""
        if not self._has_weight_info:
            return None
        response = await self.http.send("GET", f"{self.root_url}/weight_info")
        try:
            return read_reply(response).payload.get("weight_version")
        except InferenceRefused:
            return None
