"""HTTP client of an inference server, and the base class of its protocol."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from atroposlib.errors import ConfigError, InferenceRefused, InferenceUnavailable
from atroposlib.utils.backoff import Backoff, with_jitter
from atroposlib.utils.http.sockets import CONNECT_TIMEOUT_S, kept_alive
from atroposlib.utils.models.process_group import GroupSpec
from atroposlib.utils.models.version_names import named_version

# A call without an answer is repeated for so long, at most ``publish_timeout_s``: a server
# under load may refuse a connection, a proxy reset it. After that the server is left out.
GONE_AFTER_S = 15.0
BACKOFF = Backoff(0.2, 2.0)
NOT_READY = (502, 503, 504)
# Calls that a server must not get twice: repeated only if no connection was made.
ONCE = frozenset(
    {"/init_weights_update_group", "/update_weights_from_distributed"}
    | {"/init_weight_transfer_engine", "/start_weight_update", "/update_weights"}
    | {"/finish_weight_update", "join_weight_group", "receive_weights"}
)
DETAIL_CHARS = 500
CHOOSE = "choose another --weight-publisher"


@dataclass(frozen=True)
class Bucket:
    """Tensors that are broadcast in turn: names, dtypes and shapes only.

    The fields are as in SGLang's /update_weights_from_distributed.
    """

    names: list[str]
    dtypes: list[str]  # bfloat16, for example
    shapes: list[list[int]]


class ServerGone(InferenceUnavailable):
    """No answer, for as long as a call is repeated: the process or the network is gone."""


class Http:
    """HTTP client of a server: JSON bodies, bounded waits, repeated calls.

    ``on_wait`` is called with each wait for an answer.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        token: str | None = None,
        on_wait: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self.on_wait = on_wait
        # Proxy settings of the environment are ignored: a proxy would receive localhost
        # calls.
        self._client = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            transport=httpx.HTTPTransport(trust_env=False, socket_options=kept_alive()),
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def get(self, path: str, *, optional: bool = False) -> Any:
        return self._json("GET", path, None, None, optional)

    def post(
        self, path: str, body: Any = None, *, params: Any = None, optional: bool = False
    ) -> Any:
        return self._json("POST", path, body, params, optional)

    def has_route(self, path: str) -> bool:
        """A route that only takes POST answers GET with 405; an absent route with 404."""
        return self._send("GET", path, None, None).status_code != 404

    def is_ready(self, timeout_s: float = CONNECT_TIMEOUT_S) -> bool:
        """Whether the server answers now, without a repetition."""
        try:
            return self._client.get("/health", timeout=timeout_s).is_success
        except httpx.HTTPError:
            return False

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
            return {}  # some routes return plain text, which is not used

    def _send(self, method: str, path: str, body: Any, params: Any) -> httpx.Response:
        started, failures = time.monotonic(), 0
        patience_s = min(GONE_AFTER_S, self.timeout_s)
        once = path in ONCE or isinstance(body, dict) and body.get("method") in ONCE
        while True:
            try:
                response = self._client.request(method, path, json=body, params=params)
                if response.status_code not in NOT_READY:
                    return response
                gone = ServerGone(f"{method} {path}: {_detail(response)}")
            except httpx.HTTPError as error:
                gone = ServerGone(f"{method} {path}: {type(error).__name__} {error}")
                gone.__cause__ = error
            except RuntimeError as error:
                if not self._client.is_closed:
                    raise
                # Its server left the fleet, seen by another thread, while a call was under way.
                raise ServerGone(f"{method} {path}: the server has left") from error
            sent = not isinstance(gone.__cause__, httpx.ConnectError)
            waited_s = time.monotonic() - started
            if waited_s >= patience_s or once and sent:
                raise gone
            failures += 1
            self.on_wait(
                f"inference server at {self.url}: {gone}; {waited_s:.0f} s of at most"
                f" {patience_s:.0f} s"
            )
            time.sleep(min(with_jitter(BACKOFF.pause_s(failures)), patience_s - waited_s))


class InferenceServer(ABC):
    """A server. Every call has a timeout and, except group calls, is idempotent.

    Group calls have the routes of SGLang, which the local server shares.

    Raises:
        InferenceUnavailable: no answer within the bound.
        InferenceRefused: the server answered that it could not.
    """

    name: str
    _info_route = "/server_info"
    # What the server can do with running requests at a pause; the first is the default.
    # Tokens after the pause are computed from the new weights alone.
    pause_modes: Sequence[str]
    # routes that load and unload a named adapter; None: there are none
    _adapter_routes: tuple[str, str] | None = None
    _adapter: str | None = None  # model name of requests; set by the first load

    def __init__(self, http: Http, pause_mode: str | None = None) -> None:
        self.http, self.url = http, http.url
        self.pause_mode = pause_mode or self.pause_modes[0]
        if self.pause_mode not in self.pause_modes:
            raise ConfigError(
                f"the {self.name} server at {self.url} has no pause that is {pause_mode!r};"
                f" set --publish-pause to {' or '.join(self.pause_modes)}"
            )

    @property
    def wants_untied_head(self) -> bool:
        """Whether the server keeps a stale copy of an output head tied to the embedding."""
        return False

    @property
    def native_group(self) -> bool:
        """Whether vLLM creates the process group, instead of torch.distributed."""
        return False

    @property
    def opens_cuda_memory(self) -> bool:
        """Whether ``load_shared`` accepts a CUDA memory description."""
        return False

    @abstractmethod
    def require(self, publisher: str, adapter_name: str | None) -> None:
        """Raise ConfigError with the remedy if it cannot take weights from this publisher."""

    @abstractmethod
    def pause(self, resume_after_s: float | None = None) -> None:
        """Start no new request and return when none runs, after ``pause_mode``. Idempotent.

        Args:
            resume_after_s: where the server can, it resumes without a call after this time;
                pausing again without it lifts that bound.
        """

    @abstractmethod
    def resume(self) -> None: ...

    @abstractmethod
    def load(self, directory: str, version: int) -> None:
        """Load all weights from ``directory``; drop caches computed with the old weights."""

    @abstractmethod
    def load_adapter(self, directory: str, version: int, name: str | None) -> None:
        """Serve the LoRA adapter in ``directory`` on top of the initial weights.

        Args:
            name: under which requests ask for it; None: every request gets it.
        """

    def hold_adapters(self, adapters: Mapping[str, str]) -> None:
        """Serve exactly these earlier adapters (name: directory), which requests name.

        Raises ConfigError: the server has no named adapters.
        """
        if self._adapter_routes is None:
            raise ConfigError(
                f"the {self.name} server at {self.url} keeps no earlier adapters: leave"
                " keep_adapters out; our own server keeps versions with --keep-versions K"
            )
        load, unload = self._adapter_routes
        cards = self.http.get("/v1/models")["data"]
        served = [name for card in cards if named_version(name := str(card["id"])) is not None]
        for name in served:
            if name not in adapters:
                self.http.post(unload, {"lora_name": name})
        for name, directory in adapters.items():
            if name not in served:
                self.http.post(load, {"lora_name": name, "lora_path": directory})

    def load_shared(self, path: str, version: int) -> None:
        """Replace all weights by the contents of a file in memory, on the same machine."""
        raise self._cannot("shared_memory")

    def copy_to_node(self, directory: str) -> tuple[str, int]:
        """Copy a directory to the own disk of the server's node, unless that has it already.

        Returns the path there and the bytes that were copied.
        """
        raise self._cannot("node_disk")

    def ranks(self) -> int:
        """Processes of this server that each hold a part of the weights."""
        return 1

    def join_group(self, group: GroupSpec, first_rank: int) -> None:
        """Join a process group with the trainer; return when all members have joined."""
        self._update("/init_weights_update_group", self._invitation(group, first_rank))

    def _invitation(self, group: GroupSpec, first_rank: int) -> dict[str, Any]:
        names = {"group_name": group.name, "backend": group.backend}
        return {**group.rendezvous(first_rank), **names}

    def receive(self, group: GroupSpec, buckets: Sequence[Bucket], version: int) -> None:
        """Receive the broadcast of every tensor, then serve the new weights."""
        for i, bucket in enumerate(buckets):
            body = {**asdict(bucket), "group_name": group.name}
            body.update(self._bucket_fields(version, i == len(buckets) - 1))
            self._update("/update_weights_from_distributed", body)

    def _bucket_fields(self, version: int, is_last: bool) -> dict[str, Any]:
        """Further fields of the request for a bucket."""
        return {}

    def leave_group(self, group: GroupSpec) -> None:
        body = {"group_name": group.name}
        self.http.post("/destroy_weights_update_group", body, optional=True)

    @abstractmethod
    def label(self, version: int) -> None:
        """Set the version label of the weights that are already loaded."""

    def version(self) -> str | None:
        """Return the server's weight version; None before the first label."""
        version = self.http.get(self._info_route).get("weight_version")
        return None if version is None else str(version)

    def dtype(self) -> str | None:
        """Return the compute dtype, None if the server does not report it."""
        dtype = self.http.get(self._info_route).get("dtype")
        return None if dtype in (None, "auto") else str(dtype)

    def gpu(self) -> str | None:
        """Return the identifier of the server's GPU: empty on a CPU, None if not reported."""
        gpu: str | None = self.http.get(self._info_route).get("gpu")
        return gpu

    def token_ids(self, text: str) -> list[int]:
        """Tokenize ``text`` with the server's tokenizer."""
        ids: list[int] = self.http.post("/tokenize", {"prompt": text})["tokens"]
        return ids

    @abstractmethod
    def score(self, tokens: list[int]) -> list[float]:
        """Return the logprob of every token but the first, at temperature 1."""

    @abstractmethod
    def sample(
        self, tokens: list[int], count: int, temperature: float
    ) -> tuple[list[int], list[float]]:
        """Sample up to ``count`` tokens; return ids, and logprobs as the server reports."""

    def close(self) -> None:
        self.http.close()

    def _cannot(self, publisher: str) -> ConfigError:
        return ConfigError(
            f"the {self.name} server at {self.url} cannot take weights by"
            f" {publisher}; {CHOOSE}"
        )

    def _needs(self, path: str, remedy: str) -> None:
        """Raise ConfigError if the server lacks a route."""
        if not self.http.has_route(path):
            raise ConfigError(f"the server at {self.url} has no {path}: {remedy}")

    def _needs_name(self, adapter_name: str | None, engine: str, asked_for: str) -> None:
        """Raise ConfigError without a name, where only requests with it get the adapter."""
        if adapter_name is None:
            raise ConfigError(
                f"{engine} at {self.url} applies an adapter only to requests that name it. Set"
                f" --publish-adapter-name and let the environments ask for {asked_for}, or use"
                " --weight-publisher disk, which publishes merged weights"
            )

    def _update(self, path: str, body: dict[str, Any]) -> None:
        """POST; raise if a response with status 200 reports a failure in its body."""
        answer = self.http.post(path, body)
        if answer.get("success") is not True:
            raise InferenceRefused(200, f"{path}: {answer.get('message', answer)}")


def by_token(entries: Sequence[Any], tokens: Sequence[int]) -> list[float]:
    """Return the logprob of each token from an entry per token.

    An entry is {"<id>": lp}; the local server wraps it in a list, vLLM makes lp an object
    {"logprob": lp, ...}.
    """
    scored = []
    for entry, token in zip(entries, tokens):
        by_id = entry[0] if isinstance(entry, list) else entry
        value = by_id[str(token)]
        scored.append(float(value["logprob"] if isinstance(value, dict) else value))
    return scored


def _detail(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:DETAIL_CHARS]}"
