"""Fake inference server: deterministic, scriptable, with the routes of vLLM, SGLang and TRL.

    fake = FakeInference(reply=lambda prompt, i: "4")
    with fake.running() as root_url:
        config = APIServerConfig(base_url=f"{root_url}/v1", server_type="vllm")

Its vocabulary is that of :mod:`atroposlib.testing.tiny`, so ``char_tokenizer()`` encodes and
decodes its texts. The logprob of token ``t`` is always ``fake_logprob(t)``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from atroposlib.testing import fake_shapes as shapes
from atroposlib.testing.fake_shapes import (
    END,
    FakeResponse,
    Json,
    Sampled,
    decode,
    encode,
    visible,
)
from atroposlib.testing.serving import serve_in_thread

DEFAULT_SHAPES = frozenset({"generate", "scale_out", "completions"})
PICTURE = "#" * 8

Reply = Callable[[str, int], str]


def spelled_out(prompt: str, index: int) -> str:
    """Default reply: a text that depends on the prompt and the choice."""
    number = sum(encode(prompt)) + index
    return f"reply {number}"


class FakeInference:
    """State and routes of the fake; tests set fields and read ``requests``.

    Args:
        reply: text sampled for ``(prompt text, choice index)``; the end token follows it.
        shapes: which token routes exist: generate, scale_out, completions, sglang, trl,
            trl_text (a TRL server of before it returned logprobs).
    """

    def __init__(
        self, reply: Reply = spelled_out, shapes: Iterable[str] = DEFAULT_SHAPES
    ) -> None:
        self.reply = reply
        self.shapes = frozenset(shapes)
        self.weight_version: int | None = 0
        self.reports_spans = True  # weight_versions in token answers
        self.reports_header = True  # X-Weight-Version on every answer
        self.returns_logprobs = True
        self.ignores_n = False
        self.healthy = True
        self.cards: list[Json] = [{"id": "fake", "object": "model"}]  # cards of /v1/models
        self.fail_next: deque[int] = deque()  # statuses of the next generations
        # token counts after which the next generations abort
        self.abort_next: deque[int] = deque()
        self.health_next: deque[bool] = deque()  # results of the next /health calls
        self.on_request: Callable[[str, Json], None] = lambda path, body: None
        self.context: int | None = None  # tokens of prompt and reply; more are a 400 of vLLM
        self.hold: threading.Event | None = None  # generations wait until it is set
        self.requests: list[tuple[str, Json]] = []  # (path, body) of every generation
        self.headers: list[Mapping[str, str]] = []  # headers of every generation
        self.health_checks = 0
        self.running_now = 0
        self.most_at_once = 0
        self.returned_tokens = 0  # completion tokens of all answers
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/health/", self._health),
                Route("/v1/models", self._models),
                Route("/weight_info", self._weight_info),
                Route("/{path:path}", self._generate, methods=["POST"]),
            ]
        )

    @property
    def paths(self) -> list[str]:
        """Paths of the requested generations, in order."""
        return [path for path, _ in self.requests]

    @contextmanager
    def running(self, port: int = 0) -> Iterator[str]:
        """Serve on 127.0.0.1 from a thread; yields the root URL. Port 0 takes a free port."""
        with serve_in_thread(self.app, port) as url:
            try:
                yield url
            finally:
                if self.hold is not None:
                    self.hold.set()

    # --- routes -----------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        self.health_checks += 1
        healthy = self.health_next.popleft() if self.health_next else self.healthy
        return PlainTextResponse(*(("ok", 200) if healthy else ("down", 503)))

    async def _models(self, request: Request) -> Response:
        return self._json({"object": "list", "data": self.cards})

    async def _weight_info(self, request: Request) -> Response:
        return self._json({"weight_version": self.weight_version})

    async def _generate(self, request: Request) -> Response:
        import anyio

        path = request.url.path
        answer = self._answers().get(path)
        if answer is None:
            return self._json({"detail": "Not Found"}, status=404)
        body: Json = await request.json()
        if not body:
            return self._json({"detail": "a body is required"}, status=422)
        self.requests.append((path, body))
        self.headers.append(request.headers)
        self.on_request(path, body)
        if self.fail_next:
            return self._json({"detail": "as scripted"}, status=self.fail_next.popleft())
        if self.context is not None and self._is_too_long(body):
            text = f"This model's maximum context length is {self.context} tokens."
            return self._json({"error": {"message": text, "code": 400}}, status=400)
        self.running_now += 1
        self.most_at_once = max(self.most_at_once, self.running_now)
        try:
            if self.hold is not None:
                await anyio.to_thread.run_sync(self.hold.wait)
            return self._json(answer(body))
        finally:
            self.running_now -= 1

    def _is_too_long(self, body: Json) -> bool:
        prompt: Any = body.get("prompt") or body.get("input_ids") or []
        ids: Any = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt
        params = body.get("sampling_params") or body
        return len(ids) + _limit(params, 0) > (self.context or 0)

    def _answers(self) -> Mapping[str, Callable[[Json], Any]]:
        by_shape: dict[str, tuple[str, Callable[[Json], Any]]] = {
            "generate": ("/generate", self._demo_generate),
            "sglang": ("/generate", self._sglang_generate),
            "scale_out": ("/inference/v1/generate", self._scale_out_generate),
            "trl": ("/generate/", self._trl_generate),
            "trl_text": ("/generate/", self._trl_generate),
        }
        return {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            **dict(route for shape, route in by_shape.items() if shape in self.shapes),
        }

    def _json(self, payload: Any, status: int = 200) -> Response:
        headers = {}
        if self.reports_header and self.weight_version is not None:
            headers["X-Weight-Version"] = str(self.weight_version)
        return JSONResponse(payload, status_code=status, headers=headers)

    # --- answers ----------------------------------------------------------------------

    def _answer(
        self, prompt: str | Sequence[int], params: Json, default: int = 16
    ) -> FakeResponse:
        """``max_tokens`` and stop strings cut the replies short."""
        ids = encode(prompt) if isinstance(prompt, str) else list(prompt)
        n = 1 if self.ignores_n else int(params.get("n") or 1)
        limit = _limit(params, default)
        stop = params.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        abort_at = self.abort_next.popleft() if self.abort_next else None
        choices = [
            _sample(whole, limit, stops, abort_at, self.weight_version)
            for whole in ([*encode(self.reply(decode(ids), i)), END] for i in range(n))
        ]
        self.returned_tokens += sum(len(choice.tokens) for choice in choices)
        return FakeResponse(
            prompt=ids,
            choices=choices,
            has_logprobs=self.returns_logprobs,
            has_spans=self.reports_spans,
        )

    def _demo_generate(self, body: Json) -> Json:
        prompt = body["prompt"]
        text_or_ids = prompt if isinstance(prompt, str) else prompt["prompt_token_ids"]
        return shapes.demo(self._answer(text_or_ids, body), body)

    def _scale_out_generate(self, body: Json) -> Json:
        params = body["sampling_params"]
        return shapes.scale_out(self._answer(body["token_ids"], params), params)

    def _sglang_generate(self, body: Json) -> Any:
        return shapes.sglang(self._answer(body["input_ids"], body["sampling_params"]), body)

    def _trl_generate(self, body: Json) -> Json:
        params = {**body, **body.get("generation_kwargs", {})}
        (prompt,) = body["prompts"]
        return shapes.trl(self._answer(prompt, params), body, "trl" in self.shapes)

    def _completions(self, body: Json) -> Json:
        return shapes.completions(self._answer(body["prompt"], body), body)

    def _chat(self, body: Json) -> Json:
        prompt = render_messages(body["messages"])
        return shapes.chat(self._answer(prompt, body, default=256), body)


def _limit(params: Json, default: int) -> int:
    names = ("max_tokens", "max_new_tokens", "max_completion_tokens")
    limits = [int(params[name]) for name in names if params.get(name) is not None]
    return limits[0] if limits else default


def _sample(
    whole: list[int],
    limit: int,
    stops: Sequence[str],
    abort_at: int | None,
    version: int | None,
) -> Sampled:
    tokens: list[int] = []
    for token in whole[:limit]:
        if len(tokens) == abort_at:
            return Sampled(tokens, "abort", visible(tokens), version)
        tokens.append(token)
        text = visible(tokens)
        ends = [text.index(stop) for stop in stops if stop in text]
        if ends:
            return Sampled(tokens, "stop", text[: min(ends)], version)
    reason = "stop" if len(tokens) == len(whole) else "length"
    return Sampled(tokens, reason, visible(tokens), version)


def render_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """The chat template of :mod:`atroposlib.testing.tiny`, with a generation prompt.

    A picture is ``PICTURE``, as servers expand a picture to placeholder tokens.
    """
    turns = "".join(f"<|{m['role']}|>{_text_of(m['content'])}<|end|>" for m in messages)
    return f"{turns}<|assistant|>"


def _text_of(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    return "".join(PICTURE if "image_url" in part else part["text"] for part in content)
