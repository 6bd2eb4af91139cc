"""Clients of the inference servers, a class per protocol.

The operations are pause, load weights, set version, resume and score. ``connect_engine``
detects the protocol of a server by its routes, so a new kind of server needs only a new
class here.

    local    atroposlib.inference
    vllm     vLLM with VLLM_SERVER_DEV_MODE=1, best with our worker extension
    sglang   SGLang
"""

from __future__ import annotations

import time
from collections.abc import Callable

from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.utils.http.sockets import start_hint
from example_trainer.weights.engines.http import Bucket, Http, InferenceServer, ServerGone
from example_trainer.weights.engines.local import LocalEngine
from example_trainer.weights.engines.sglang import SglangEngine
from example_trainer.weights.engines.vllm import VllmEngine

__all__ = ["Bucket", "InferenceServer", "ServerGone", "connect_engine"]

ENGINES: dict[str, Callable[[Http, str | None], InferenceServer]] = {
    "local": LocalEngine,
    "vllm": VllmEngine,
    "sglang": SglangEngine,
}


def connect_engine(
    url: str,
    kind: str,
    *,
    timeout_s: float,
    wait_s: float,
    on_wait: Callable[[str], None],
    token: str | None = None,
    pause_mode: str | None = None,
    on_repeat: Callable[[str], None] = lambda what: None,
) -> InferenceServer:
    """Connect to the server at ``url``, waiting up to ``wait_s`` seconds for its start.

    Args:
        token: sent as bearer token with every request.
        pause_mode: setting ``publish_pause``.
        on_repeat: called with each wait of a later call for an answer; must not raise.

    Raises:
        InferenceUnavailable: nothing answers /health within ``wait_s``.
        ConfigError: something answers, but it cannot take new weights, or not so.
    """
    http = Http(url, timeout_s, token, on_repeat)
    try:
        _wait_until_healthy(http, wait_s, on_wait)
        return ENGINES[detect(http) if kind == "auto" else kind](http, pause_mode)
    except BaseException:  # the error is re-raised; only the connections are closed
        http.close()
        raise


def _wait_until_healthy(http: Http, wait_s: float, on_wait: Callable[[str], None]) -> None:
    started = time.monotonic()
    remedy = start_hint("atropos-infer --model MODEL_DIR", http.url)
    while not http.is_ready():
        waited_s = time.monotonic() - started
        if waited_s > wait_s:
            raise InferenceUnavailable(
                f"no inference server at {http.url} after {waited_s:.0f} s: GET /health has no"
                f" answer; set --inference-urls, or {remedy}"
            )
        on_wait(
            f"inference server at {http.url}: GET /health has no answer; {waited_s:.0f} s of"
            f" at most {wait_s:.0f} s; {remedy}"
        )
        time.sleep(0.5)


def detect(http: Http) -> str:
    """Detect the protocol of the server by its routes; raises as :func:`connect_engine`."""
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
