"""Inference servers as the trainer sees them: pause, load, version, resume, score.

One class per protocol. ``connect`` asks a server which one it speaks by looking at its
routes, so a new server version is a new class here and nothing elsewhere.

    local    /pause /update_weights_from_disk /server_info /generate      (atroposlib.inference)
    vllm     /pause /collective_rpc /update_weight_version /v1/completions (VLLM_SERVER_DEV_MODE=1)
    sglang   /pause_generation /update_weights_from_disk /generate
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import httpx

from atroposlib.errors import (
    ConfigError,
    InferenceError,
    InferenceRefused,
    InferenceUnavailable,
)

CONNECT_TIMEOUT_S = 10.0
LONGEST_PAUSE_S = 3600.0  # the local server takes no longer bound
# A server under load may refuse a connection for a moment; each retry waits twice as long.
RETRIES_S = (0.2, 0.4, 0.8, 1.6)
DETAIL_CHARS = 500


class Engine(Protocol):
    """One server. Every call is bounded and safe to repeat.

    Raises:
        InferenceUnavailable: no answer within the bound.
        InferenceRefused: the server answered that it could not.
    """

    name: str
    url: str

    def pause(self) -> None:
        """Start no new request; returns when none runs. Pausing twice is pausing."""

    def resume(self) -> None: ...

    def load(self, directory: str, version: int) -> None:
        """Replace all weights by those in ``directory`` and drop caches made by old ones."""

    def label(self, version: int) -> None:
        """Name the weights that are loaded already."""

    def version(self) -> str | None:
        """What the server calls its weights; None before anybody named them."""

    def token_ids(self, text: str) -> list[int]:
        """``text`` as the server's tokenizer sees it."""

    def score(self, tokens: list[int]) -> list[float]:
        """Logprob of every token but the first, at temperature 1."""

    def close(self) -> None:
        """Give the connections back."""


class Http:
    """JSON over HTTP to one server, with bounded waits."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self.timeout_s = timeout_s
        # Proxies of the environment are not used: they would carry calls to localhost away.
        self._client = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    def get(self, path: str, *, optional: bool = False) -> Any:
        return self._json("GET", path, None, None, optional)

    def post(
        self, path: str, body: Any = None, *, params: Any = None, optional: bool = False
    ) -> Any:
        return self._json("POST", path, body, params, optional)

    def has_route(self, path: str) -> bool:
        """A route that only takes POST answers GET with 405; an absent one with 404."""
        return self._send("GET", path, None, None).status_code != 404

    def close(self) -> None:
        self._client.close()

    def _json(self, method: str, path: str, body: Any, params: Any, optional: bool) -> Any:
        response = self._send(method, path, body, params)
        if optional and response.status_code == 404:
            return None
        if response.status_code >= 500:
            raise InferenceUnavailable(f"{method} {path}: {_detail(response)}")
        if response.status_code >= 400:
            raise InferenceRefused(
                response.status_code, f"{method} {path}: {_detail(response)}"
            )
        try:
            return response.json() if response.content else {}
        except ValueError:
            return {}  # some routes answer with plain text; nothing reads it

    def _send(self, method: str, path: str, body: Any, params: Any) -> httpx.Response:
        for delay_s in (*RETRIES_S, None):
            try:
                return self._client.request(method, path, json=body, params=params)
            except (httpx.ConnectError, httpx.RemoteProtocolError) as error:
                if delay_s is None:
                    raise InferenceUnavailable(f"{method} {path}: {error}") from error
                time.sleep(delay_s)
            except httpx.HTTPError as error:
                raise InferenceUnavailable(
                    f"{method} {path}: {type(error).__name__} {error}"
                ) from error
        raise AssertionError("unreachable")


def _detail(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:DETAIL_CHARS]}"


def _must_succeed(answer: dict[str, Any], what: str) -> None:
    if answer.get("success") is not True:
        raise InferenceRefused(200, f"{what}: {answer.get('message', answer)}")


class _OverHttp:
    """What all engines do alike."""

    def __init__(self, http: Http) -> None:
        self.http, self.url = http, http.url

    def close(self) -> None:
        self.http.close()


class LocalEngine(_OverHttp):
    """The server of ``atroposlib.inference``."""

    name = "local"

    def pause(self) -> None:
        # Its own bound is a minute; ours is what the user set.
        timeout_s = min(self.http.timeout_s, LONGEST_PAUSE_S)
        self.http.post("/pause", params={"mode": "wait", "timeout_s": timeout_s})

    def resume(self) -> None:
        self.http.post("/resume")

    def load(self, directory: str, version: int) -> None:
        body = {"model_path": directory, "weight_version": version}
        answer = self.http.post("/update_weights_from_disk", body)
        _must_succeed(answer, "/update_weights_from_disk")

    def label(self, version: int) -> None:
        self.http.post("/update_weight_version", {"weight_version": version})

    def version(self) -> str | None:
        return _name(self.http.get("/server_info").get("weight_version"))

    def token_ids(self, text: str) -> list[int]:
        body = {"prompt": text, "max_tokens": 1, "logprobs": 0}
        ids: list[int] = self.http.post("/generate", body)["prompt_token_ids"]
        return ids

    def score(self, tokens: list[int]) -> list[float]:
        body = {
            "prompt": {"prompt_token_ids": tokens},
            "max_tokens": 1,
            "temperature": 1.0,
            "logprobs": 0,
            "prompt_logprobs": 0,
        }
        answer = self.http.post("/generate", body)
        return _by_token(answer["prompt_logprobs"], tokens)


class VllmEngine(_OverHttp):
    """vLLM with its development routes on; reloads in place through collective_rpc."""

    name = "vllm"

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self._model: str | None = None

    def pause(self) -> None:
        self.http.post("/pause", params={"mode": "wait"})

    def resume(self) -> None:
        self.http.post("/resume")

    def load(self, directory: str, version: int) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": directory}}
        self.http.post("/collective_rpc", body)
        # Prefixes computed by the old weights would be reused by the new ones.
        self.http.post("/reset_prefix_cache", optional=True)
        self.label(version)

    def label(self, version: int) -> None:
        # vLLM takes a string only, and under this name.
        self.http.post("/update_weight_version", {"new_version": str(version)})

    def version(self) -> str | None:
        return _name(self.http.get("/weight_info").get("weight_version"))

    def token_ids(self, text: str) -> list[int]:
        body = {"prompt": text, "max_tokens": 1, "return_token_ids": True}
        answer = self.http.post("/v1/completions", {**body, "model": self._served_model()})
        ids: list[int] = answer["choices"][0]["prompt_token_ids"]
        return ids

    def score(self, tokens: list[int]) -> list[float]:
        body = {
            "model": self._served_model(),
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        answer = self.http.post("/v1/completions", body)
        return _by_token(answer["choices"][0]["prompt_logprobs"], tokens)

    def _served_model(self) -> str:
        if self._model is None:
            self._model = str(self.http.get("/v1/models")["data"][0]["id"])
        return self._model


class SglangEngine(_OverHttp):
    """SGLang. Its pause has no mode that waits; aborted requests return what they have."""

    name = "sglang"

    def pause(self) -> None:
        self.http.post("/pause_generation", {"mode": "abort"})

    def resume(self) -> None:
        self.http.post("/continue_generation", {})

    def load(self, directory: str, version: int) -> None:
        body = {"model_path": directory, "weight_version": str(version), "flush_cache": True}
        answer = self.http.post("/update_weights_from_disk", body)
        _must_succeed(answer, "/update_weights_from_disk")

    def label(self, version: int) -> None:
        body = {"new_version": str(version), "abort_all_requests": False}
        self.http.post("/update_weight_version", body)

    def version(self) -> str | None:
        return _name(self.http.get("/server_info").get("weight_version"))

    def token_ids(self, text: str) -> list[int]:
        answer = self.http.post("/generate", self._scoring({"text": text}))
        return [int(entry[1]) for entry in answer["meta_info"]["input_token_logprobs"]]

    def score(self, tokens: list[int]) -> list[float]:
        answer = self.http.post("/generate", self._scoring({"input_ids": tokens}))
        entries = answer["meta_info"]["input_token_logprobs"]
        return [float(entry[0]) for entry in entries[1:]]

    @staticmethod
    def _scoring(prompt: dict[str, Any]) -> dict[str, Any]:
        sampling = {"max_new_tokens": 1, "temperature": 1.0}
        return {
            **prompt,
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
        }


def _name(version: Any) -> str | None:
    return None if version is None else str(version)


def _by_token(entries: list[Any], tokens: list[int]) -> list[float]:
    """Logprobs of ``tokens[1:]`` from one entry per token, the first of which is null.

    An entry is {"<id>": lp}; the local server wraps it in a list, vLLM makes lp an object
    {"logprob": lp, ...}.
    """
    scored = []
    for entry, token in zip(entries[1:], tokens[1:]):
        by_id = entry[0] if isinstance(entry, list) else entry
        value = by_id[str(token)]
        scored.append(float(value["logprob"] if isinstance(value, dict) else value))
    return scored


ENGINES: dict[str, Callable[[Http], Engine]] = {
    "local": LocalEngine,
    "vllm": VllmEngine,
    "sglang": SglangEngine,
}


def connect(
    url: str, kind: str, *, timeout_s: float, wait_s: float, on_wait: Callable[[str], None]
) -> Engine:
    """The engine at ``url``, waiting up to ``wait_s`` for it to start.

    Raises:
        InferenceUnavailable: nothing answers /health within ``wait_s``.
        ConfigError: something answers, but it cannot take new weights.
    """
    http = Http(url, timeout_s)
    try:
        _wait_until_healthy(http, wait_s, on_wait)
        return ENGINES[detect(http) if kind == "auto" else kind](http)
    except BaseException:  # not swallowed: only the connections are given back
        http.close()
        raise


def _wait_until_healthy(http: Http, wait_s: float, on_wait: Callable[[str], None]) -> None:
    started = time.monotonic()
    while True:
        try:
            http.get("/health")
            return
        except InferenceError as error:
            waited_s = time.monotonic() - started
            if waited_s > wait_s:
                raise InferenceUnavailable(
                    f"no inference server at {http.url} after {waited_s:.0f} s: {error};"
                    " set --inference-urls"
                ) from error
            on_wait(
                f"inference server at {http.url}: {error}; {waited_s:.0f} s of at most {wait_s:.0f} s"
            )
            time.sleep(0.5)


def detect(http: Http) -> str:
    """Which protocol the server speaks, judged by its routes.

    Raises:
        ConfigError: none that can take new weights; says how to start the server.
    """
    info = http.get("/server_info", optional=True) if http.has_route("/server_info") else None
    if isinstance(info, dict) and info.get("engine") == "atropos-local":
        return "local"
    if http.has_route("/pause_generation") and http.has_route("/update_weights_from_disk"):
        return "sglang"
    if http.has_route("/pause") and http.has_route("/collective_rpc"):
        return "vllm"
    raise ConfigError(
        f"the server at {http.url} has no routes for new weights. Start vLLM 0.16 or newer"
        " with VLLM_SERVER_DEV_MODE=1, SGLang, or python -m atroposlib.inference; or name"
        " its protocol with --inference-engine"
    )
