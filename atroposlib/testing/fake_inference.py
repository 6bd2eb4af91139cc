"""An inference server without a model: deterministic, scriptable, speaking vLLM's shapes.

    fake = FakeInference(reply=lambda prompt, i: "4")
    with fake.running() as root_url:
        config = APIServerConfig(base_url=f"{root_url}/v1", server_type="vllm")

Its vocabulary is that of :mod:`atroposlib.testing.tiny`, so ``char_tokenizer()`` encodes and
decodes what it says. The logprob of token ``t`` is always ``fake_logprob(t)``.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from atroposlib.testing.tiny import ALPHABET, ROLE_TOKENS

VOCABULARY = (*ROLE_TOKENS, *ALPHABET)
END = ROLE_TOKENS.index("<|end|>")
_ID_OF = {token: i for i, token in enumerate(VOCABULARY)}
DEFAULT_SHAPES = frozenset({"generate", "scale_out", "completions"})
JOIN_TIMEOUT_S = 10.0

Reply = Callable[[str, int], str]
Json = dict[str, Any]


def fake_logprob(token: int) -> float:
    """Negative, different for neighbouring ids, exact in binary: -1/8 to -7/8."""
    return -(1 + token % 7) / 8


def encode(text: str) -> list[int]:
    """Ids of text; role markers are one token each."""
    ids: list[int] = []
    while text:
        marker = next((m for m in ROLE_TOKENS if text.startswith(m)), text[0])
        ids.append(_ID_OF.get(marker, _ID_OF["<|pad|>"]))
        text = text[len(marker) :]
    return ids


def decode(ids: Iterable[int]) -> str:
    return "".join(VOCABULARY[i] for i in ids)


def spelled_out(prompt: str, index: int) -> str:
    """The default reply: a word that depends on the prompt and the choice."""
    number = sum(encode(prompt)) + index
    return f"reply {number}"


class FakeInference:
    """State and routes of the fake; tests set fields and read ``requests``.

    Args:
        reply: text sampled for ``(prompt text, choice index)``; the end token follows it.
        shapes: which token routes exist: generate, scale_out, completions.
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
        self.fail_next: deque[int] = deque()  # statuses to answer the next generations with
        self.health_next: deque[bool] = deque()  # answers of the next /health calls
        self.on_request: Callable[[str, Json], None] = lambda path, body: None
        self.hold: threading.Event | None = None  # generations wait until it is set
        self.requests: list[tuple[str, Json]] = []  # (path, body) of every generation
        self.health_checks = 0
        self.running_now = 0
        self.most_at_once = 0
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/weight_info", self._weight_info),
                Route("/{path:path}", self._generate, methods=["POST"]),
            ]
        )

    @property
    def paths(self) -> list[str]:
        """Paths of the generations that were asked for, in order."""
        return [path for path, _ in self.requests]

    @contextmanager
    def running(self, port: int = 0) -> Iterator[str]:
        """Serve on 127.0.0.1 from a thread; yields the root URL. Port 0 takes a free one."""
        import uvicorn

        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()  # callers may connect before the thread accepts
            config = uvicorn.Config(
                self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(
                target=server.run, kwargs={"sockets": [listener]}, daemon=True
            )
            thread.start()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                if self.hold is not None:
                    self.hold.set()
                server.should_exit = True
                thread.join(JOIN_TIMEOUT_S)

    # --- routes -----------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        self.health_checks += 1
        healthy = self.health_next.popleft() if self.health_next else self.healthy
        return PlainTextResponse(
            "ok" if healthy else "down", status_code=200 if healthy else 503
        )

    async def _models(self, request: Request) -> Response:
        return self._json({"object": "list", "data": [{"id": "fake", "object": "model"}]})

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
        self.on_request(path, body)
        if self.fail_next:
            return self._json({"detail": "as scripted"}, status=self.fail_next.popleft())
        self.running_now += 1
        self.most_at_once = max(self.most_at_once, self.running_now)
        try:
            if self.hold is not None:
                await anyio.to_thread.run_sync(self.hold.wait)
            return self._json(answer(body))
        finally:
            self.running_now -= 1

    def _answers(self) -> Mapping[str, Callable[[Json], Any]]:
        answers: dict[str, Callable[[Json], Any]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
        }
        if "generate" in self.shapes:
            answers["/generate"] = self._demo_generate
        if "sglang" in self.shapes:
            answers["/generate"] = self._sglang_generate
        if "scale_out" in self.shapes:
            answers["/inference/v1/generate"] = self._scale_out_generate
        return answers

    def _json(self, payload: Any, status: int = 200) -> Response:
        headers = {}
        if self.reports_header and self.weight_version is not None:
            headers["X-Weight-Version"] = str(self.weight_version)
        return JSONResponse(payload, status_code=status, headers=headers)

    # --- answers ----------------------------------------------------------------------

    def _sample(self, ids: Sequence[int], params: Json) -> list[tuple[list[int], str]]:
        """(tokens, finish reason) of each choice; ``max_tokens`` cuts the reply short."""
        n = 1 if self.ignores_n else int(params.get("n") or 1)
        limit = int(params.get("max_tokens") or params.get("max_new_tokens") or 16)
        outputs = []
        for i in range(n):
            tokens = [*encode(self.reply(decode(ids), i)), END]
            outputs.append((tokens[:limit], "stop" if len(tokens) <= limit else "length"))
        return outputs

    def _spans(self, tokens: Sequence[int]) -> list[Json] | None:
        if not self.reports_spans:
            return None
        return [{"version": self.weight_version, "start": 0, "end": len(tokens)}]

    def _prompt_logprobs(self, ids: Sequence[int], k: int | None) -> list[Any] | None:
        if k is None:
            return None
        others = range(k)  # ids 0..k-1 stand for the most likely ones
        return [None] + [
            {str(t): {"logprob": fake_logprob(t)} for t in dict.fromkeys([token, *others])}
            for token in ids[1:]
        ]

    def _demo_generate(self, body: Json) -> Json:
        prompt = body["prompt"]
        ids = encode(prompt) if isinstance(prompt, str) else prompt["prompt_token_ids"]
        outputs = self._sample(ids, body)
        answer: Json = {
            "text": [visible(tokens) for tokens, _ in outputs],
            "finish_reasons": [reason for _, reason in outputs],
            "prompt_token_ids": ids,
            "token_ids": [tokens for tokens, _ in outputs],
            "prompt_logprobs": self._prompt_logprobs(ids, body.get("prompt_logprobs")),
        }
        if self.returns_logprobs:
            answer["logprobs"] = [
                [[{str(t): fake_logprob(t)}] for t in tokens] for tokens, _ in outputs
            ]
        if self.reports_spans:
            answer["weight_versions"] = [self._spans(tokens) for tokens, _ in outputs]
        return answer

    def _scale_out_generate(self, body: Json) -> Json:
        ids, params = body["token_ids"], body["sampling_params"]
        return {
            "request_id": "fake",
            "prompt_logprobs": self._prompt_logprobs(ids, params.get("prompt_logprobs")),
            "choices": [
                {
                    "index": i,
                    "token_ids": tokens,
                    "finish_reason": reason,
                    "weight_versions": self._spans(tokens),
                    "logprobs": self._chat_logprobs(tokens),
                }
                for i, (tokens, reason) in enumerate(self._sample(ids, params))
            ],
        }

    def _sglang_generate(self, body: Json) -> Any:
        ids = body["input_ids"]
        outputs = []
        for tokens, reason in self._sample(ids, body["sampling_params"]):
            triples = [[fake_logprob(t), t, None] for t in tokens]
            meta = {
                "finish_reason": {"type": reason},
                "completion_tokens": len(tokens),
                "output_token_logprobs": triples if self.returns_logprobs else None,
                "weight_version": str(self.weight_version),
            }
            outputs.append({"text": visible(tokens), "output_ids": tokens, "meta_info": meta})
        return outputs[0] if len(outputs) == 1 else outputs

    def _completions(self, body: Json) -> Json:
        prompt = body["prompt"]
        ids = encode(prompt) if isinstance(prompt, str) else prompt
        choices = []
        for i, (tokens, reason) in enumerate(self._sample(ids, body)):
            choice: Json = {"index": i, "text": visible(tokens), "finish_reason": reason}
            if body.get("logprobs") is not None and self.returns_logprobs:
                choice["logprobs"] = {"token_logprobs": [fake_logprob(t) for t in tokens]}
            if body.get("return_token_ids"):
                choice |= {"token_ids": tokens, "prompt_token_ids": ids}
            choice["prompt_logprobs"] = self._prompt_logprobs(ids, body.get("prompt_logprobs"))
            choices.append(choice)
        return self._envelope("text_completion", ids, choices)

    def _chat(self, body: Json) -> Json:
        ids = encode(rendered(body["messages"]))
        choices = [
            {
                "index": i,
                "finish_reason": reason,
                "message": {"role": "assistant", "content": visible(tokens)},
            }
            for i, (tokens, reason) in enumerate(
                self._sample(ids, {"max_tokens": 256, **body})
            )
        ]
        return self._envelope("chat.completion", ids, choices)

    def _chat_logprobs(self, tokens: Sequence[int]) -> Json | None:
        if not self.returns_logprobs:
            return None
        entries = [{"token": f"token_id:{t}", "logprob": fake_logprob(t)} for t in tokens]
        return {"content": entries}

    def _envelope(self, kind: str, ids: Sequence[int], choices: list[Json]) -> Json:
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "total_tokens": len(ids) + 1,
        }
        return {
            "id": f"fake-{len(self.requests)}",
            "object": kind,
            "created": 0,
            "model": "fake",
            "choices": choices,
            "usage": usage,
        }


def visible(tokens: Iterable[int]) -> str:
    """Text without role markers, as servers return it."""
    return "".join(VOCABULARY[t] for t in tokens if VOCABULARY[t] not in ROLE_TOKENS)


def rendered(messages: Sequence[Mapping[str, Any]]) -> str:
    """The chat template of :mod:`atroposlib.testing.tiny`, with a generation prompt."""
    turns = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)
    return f"{turns}<|assistant|>"
