"""Base class of the engine clients: slots, retries, health checks, timings.

    caller -> wait until healthy -> take a slot -> attempt, at most 3 times -> result

A backend is a subclass that overrides the ``_..._wrapper`` hooks: each makes a single attempt.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.chat.template import load_tokenizer
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.health import (
    CustomHealthCheck,
    HealthMonitor,
    LegacyHealth,
    health_answer,
    restarted_text,
    with_retries,
)
from atroposlib.generation.engines.http import HttpClient, server_root
from atroposlib.generation.engines.returned import note_returned, token_receiver
from atroposlib.generation.engines.slots import SplitStats, generated_tokens, spending
from atroposlib.generation.sampling.generation import (
    UNKNOWN_VERSION,
    FourTuple,
    Generation,
    from_four_tuple,
    version_number,
    went_back,
    with_configured,
    with_max_tokens,
    with_stop_ids,
    with_version,
)
from atroposlib.generation.sampling.reasoning import (
    OFFICIAL_OPENAI_URL,
    ReasoningConfig,
    in_official_form,
    is_official_openai,
)
from atroposlib.generation.sampling.resume import Decode, generate_with_resume
from atroposlib.wire.status import ServerState

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class ServerParts:
    """State of a server under names of its own: those of APIServer may be reused by subclasses."""

    train: SplitStats
    evals: SplitStats
    base_url: str
    root_url: str
    is_official_openai: bool
    http: HttpClient
    health: HealthMonitor
    sessions: int = 0  # open managed and dedicated sessions, counted as used slots

    def add_sessions(self, change: int) -> None:
        """Count sessions that begin, or that end: -1."""
        self.sessions += change


class PartAttribute(Generic[T]):
    """A part of a server to read; a value that a subclass sets under its name hides it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, server: APIServer | None, owner: type[APIServer]) -> T:
        if server is None:
            return self  # type: ignore[return-value]  # read from the class
        value: T = getattr(server._parts, self._name)
        return value


class APIServer(LegacyHealth, ABC):
    """An inference server. Train and eval calls have separate slots and timings."""

    _parts: ServerParts
    health = PartAttribute[HealthMonitor]("health")
    http = PartAttribute[HttpClient]("http")
    train_stats = PartAttribute[SplitStats]("train")
    eval_stats = PartAttribute[SplitStats]("evals")
    sessions = PartAttribute[int]("sessions")
    base_url = PartAttribute[str]("base_url")
    root_url = PartAttribute[str]("root_url")
    is_official_openai = PartAttribute[bool]("is_official_openai")

    #: Whether rows can be trained on: the backend returns token ids and logprobs.
    returns_tokens = True
    #: Whether chat requests may carry the reasoning fields of hosted APIs.
    accepts_reasoning = True
    #: Path of the health check, which generates nothing.
    health_path = "/health"
    #: Policy version of tokens for which the server reports none; None if unknown.
    announced_version: int | None = None
    #: GET route with ``weight_version``; None if the server has none.
    version_path: str | None = None
    _newest_version = UNKNOWN_VERSION  # newest version that the server reported

    def __init__(
        self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None
    ) -> None:
        self.config = config
        kept = config.rolling_buffer_length
        train = SplitStats(config.num_max_requests_at_once, kept)
        evals = SplitStats(config.num_requests_for_eval, kept)
        base_url = (config.base_url or "").rstrip("/") or OFFICIAL_OPENAI_URL
        root_url = server_root(base_url)
        official = is_official_openai(base_url)
        # Names of the original, which its environments read.
        self.sem, self.attempts_list = train.slots, train.attempts
        self.eval_sem, self.eval_attempts_list = evals.slots, evals.attempts
        self.request_timings, self.eval_request_timings = train.timings_s, evals.timings_s
        self.reasoning_config = reasoning_config or ReasoningConfig()
        http = HttpClient(
            timeout_s=config.timeout,
            api_key=config.api_key or (os.environ.get("OPENAI_API_KEY") if official else None),
        )
        self._custom_check = CustomHealthCheck(self.check_server_status_task)
        self._warned: set[str] = set()
        own_check = type(self).check_server_status_task
        overridden = own_check is not APIServer.check_server_status_task
        health = HealthMonitor(
            name=root_url,
            probe=self._custom_check.probe if overridden else self._check_health,
            timeout_s=config.timeout,
            enabled=config.health_check and not official,
        )
        self._parts = ServerParts(train, evals, base_url, root_url, official, http, health)

    # --- public calls ---------------------------------------------------------------

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """OpenAI chat parameters, plus ``split`` ("train", or anything else for eval).

        ``skip_reasoning=True`` leaves the reasoning fields out. Raises InferenceUnavailable
        (no usable answer in three attempts, or unhealthy for ``config.timeout`` seconds), or
        InferenceRefused: the server returned 4xx, after a single request.
        """
        kwargs = with_configured(kwargs, self.config)
        if not kwargs.pop("skip_reasoning", False):
            kwargs = self._inject_reasoning_kwargs(kwargs)
        return await self._call(self._chat_completion_wrapper, kwargs)

    async def completion(self, **kwargs: Any) -> Completion:
        """OpenAI completion parameters, plus ``split``. Raises as chat_completion does."""
        kwargs = with_configured(kwargs, self.config)
        return await self._call(self._completion_wrapper, kwargs)

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> FourTuple:
        """``(prompt_ids, [tokens], [logprobs], [finish_reason])``. Raises TokensMissing."""
        return await self._call(self._tokens_and_logprobs_completion_wrapper, kwargs)

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """Logprobs of a given sequence of T tokens.

        Returns:
            ``prompt_tokens`` (T,), ``prompt_topk_token_ids`` (T, K_t) and
            ``prompt_topk_logprobs`` (T, K_t); K_t is 0 at position 0.
        """
        return await self._call(self._get_logprobs_wrapper, kwargs)

    async def generate(
        self, input_ids: list[int], split: str = "train", **sampling: Any
    ) -> list[Generation]:
        """``n`` (1) continuations of exactly the tokens ``input_ids`` (P,).

        A continuation that a weight update aborts is resumed. Each token has the version that
        sampled it. Raises as :meth:`tokens_and_logprobs_completion`.
        """

        async def ask(ids: list[int], params: dict[str, Any]) -> list[Generation]:
            return await self.generate_segment(ids, split=split, **params)

        params = {"n": 1, "temperature": 1.0, **with_max_tokens(sampling)}
        return await generate_with_resume(
            input_ids, params, ask, self.decoder, self.config.timeout
        )

    async def generate_segment(
        self, input_ids: list[int], split: str = "train", **params: Any
    ) -> list[Generation]:
        """Send a request of :meth:`generate`. Outputs may have the finish reason "abort"."""
        kwargs = {**params, "input_ids": list(input_ids), "split": split}

        async def attempt(**kwargs: Any) -> list[Generation]:
            version = self.announced_version
            outputs = await self._request_tokens(kwargs)
            self._require_current(outputs, version)
            return [with_version(output, version) for output in outputs]

        if self._overrides_token_call():
            return await attempt(**kwargs)
        return await self._call(attempt, kwargs)

    async def decoder(self) -> Decode:
        """Decoder of tokens, to find stop strings that span a resumption."""
        tokenizer = await asyncio.to_thread(load_tokenizer, self.config)
        return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))

    async def update_weight(self, weight: float) -> None:
        """Limit both splits to this share of their slots, with a minimum of 1 slot each."""
        self._parts.train.slots.update_weight(weight)
        self._parts.evals.slots.update_weight(weight)

    async def wandb_metrics(
        self, metrics_dict: dict[str, Any] | None, server_name: str | None
    ) -> dict[str, Any]:
        """Add this server's timings, in seconds, as ``server/<name>_...``."""
        metrics = metrics_dict if metrics_dict is not None else {}
        prefix = f"server/{server_name or 'server'}"
        metrics.update(self._parts.train.metrics(f"{prefix}_"))
        metrics.update(self._parts.evals.metrics(f"{prefix}_eval_"))
        return metrics

    async def state(self) -> ServerState:
        """Requests of this process, and whether the server answers."""
        slots = self._parts.train.slots, self._parts.evals.slots
        running = sum(slot.in_use for slot in slots)
        known = self._newest_version != UNKNOWN_VERSION
        return ServerState(
            url=self._parts.root_url,
            silent_s=await self._parts.health.silence_s() if running else None,
            running=running,
            waiting=sum(slot.waiting for slot in slots),
            version=self._newest_version if known else None,
            tokens_per_s=self._parts.train.tokens_per_s() + self._parts.evals.tokens_per_s(),
            paused=self._parts.health.paused,
        )

    def headroom(self, split: str) -> int:
        """Slots minus calls that run or wait: negative if calls wait."""
        return self._stats_of(split).headroom

    async def close(self) -> None:
        """Close the connections; a later call opens new connections."""
        await self._parts.health.close()
        await self._custom_check.close()
        await self._parts.http.aclose()

    # --- hooks: a single attempt each ------------------------------------------------------

    async def check_server_status_task(self, chat_completion: bool = True) -> bool | None:
        """Whether the server is healthy. Override it for servers without :attr:`health_path`.

        An override may return a bool, or set ``server_healthy`` once or in an endless loop.
        """
        return await self._check_health()

    @abstractmethod
    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion: ...

    @abstractmethod
    async def _completion_wrapper(self, **kwargs: Any) -> Completion: ...

    @abstractmethod
    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> FourTuple: ...

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        """Make an attempt with unknown versions; backends that report versions override it."""
        return from_four_tuple(*await self._tokens_and_logprobs_completion_wrapper(**kwargs))

    async def _get_logprobs_wrapper(self, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} does not implement get_logprobs")

    def _inject_reasoning_kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """``kwargs`` with the reasoning fields of hosted models, if they are configured."""
        fields = self.reasoning_config.build_extra_body(self._parts.base_url)
        if fields is None:
            return kwargs
        if not self.accepts_reasoning:
            self._warn_once(
                "thinking_mode has no effect on this kind of server; "
                "choose it through the chat template instead"
            )
            return kwargs
        kwargs = {**kwargs, "extra_body": {**(kwargs.get("extra_body") or {}), **fields}}
        if not self._parts.is_official_openai:
            return kwargs
        if kwargs.get("temperature") not in (None, 1, 1.0):
            self._warn_once("temperature 1.0 is sent: reasoning models refuse any other")
        return in_official_form(kwargs)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s: %s", self._parts.root_url, message)

    # --- the common flow --------------------------------------------------------------

    async def _check_health(self) -> bool:
        """Probe the server. A hosted API without this path returns 404, which counts as healthy."""
        health = self._parts.health
        health.old_weights = None
        answer = await health_answer(
            self._parts.http, f"{self._parts.root_url}{self.health_path}"
        )
        if answer is None:
            return False
        health.note_pause(bool(answer.get("paused")))
        if self.version_path is None or self._newest_version == UNKNOWN_VERSION:
            return True
        url = f"{self._parts.root_url}{self.version_path}"
        reported = version_number(await self._parts.http.field("GET", url, "weight_version"))
        announced = self.announced_version
        if went_back(reported, self._newest_version, announced):
            health.old_weights = restarted_text(reported, announced)
        return health.old_weights is None

    def _require_current(self, outputs: list[Generation], announced: int | None) -> None:
        """Raise InferenceUnavailable for tokens of a server that restarted with old weights."""
        versions = [version for output in outputs for version in output.versions]
        reported = max(versions, default=self._newest_version)
        if went_back(reported, self._newest_version, announced):
            note_returned(self, "train", outputs, discarded="old_weights")
            raise InferenceUnavailable(
                f"{self._parts.root_url} {restarted_text(reported, announced)}"
            )
        self._newest_version = reported

    def _overrides_token_call(self) -> bool:
        """Whether a subclass of the original or a test replaced the public call."""
        name, own = "tokens_and_logprobs_completion", type(self)
        overridden = getattr(own, name) is not getattr(APIServer, name)
        by_class = overridden and own._generate_wrapper is APIServer._generate_wrapper
        return by_class or name in vars(self)

    async def _request_tokens(self, kwargs: dict[str, Any]) -> list[Generation]:
        """Make an attempt through the hook that the most derived class overrides.

        Subclasses of the original override ``_tokens_and_logprobs_completion_wrapper``.
        """
        if self._overrides_token_call():
            return from_four_tuple(*await self.tokens_and_logprobs_completion(**kwargs))
        for cls in type(self).__mro__:
            if "_generate_wrapper" in vars(cls):
                break
            if "_tokens_and_logprobs_completion_wrapper" in vars(cls):
                return await APIServer._generate_wrapper(self, **kwargs)
        return await self._generate_wrapper(**kwargs)

    def _stats_of(self, split: str) -> SplitStats:
        return self._parts.train if split == "train" else self._parts.evals

    def _split_of(self, stats: SplitStats) -> str:
        return "train" if stats is self._parts.train else "eval"

    async def _call(self, hook: Callable[..., Awaitable[T]], kwargs: dict[str, Any]) -> T:
        """Result of ``hook`` for ``kwargs`` without ``split``, and with the server's model."""
        stats = self._stats_of(kwargs.pop("split", None) or "train")
        kwargs = with_stop_ids(kwargs)
        with stats.track():
            with spending("queue"):
                # The first wait may set the model's name.
                await self._parts.health.wait_until_healthy()
                attempt = partial(hook, **{**kwargs, "model": self.config.model_name})
                await stats.slots.acquire()
            try:
                started = time.monotonic()
                with spending("generate"):
                    result, attempts = await with_retries(attempt, self._parts.health)
                stats.record(time.monotonic() - started, attempts, generated_tokens(result))
                if token_receiver.get() is not None:
                    note_returned(self, self._split_of(stats), result)
                return result
            finally:
                stats.slots.release()
