"""Client of vLLM with its development routes.

Weights are loaded by our worker extension (``vllm_worker.WeightWorker``) where vLLM was
started with it, else by vLLM's own routes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from atroposlib.errors import ConfigError, InferenceError
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.weights.engines.http import Bucket, InferenceServer, by_token

EXTENSION = "--worker-extension-cls example_trainer.weights.vllm_worker.WeightWorker"
# The extension's reply to ``weight_worker``; see vllm_worker.
EXTENSION_NAME = "atropos-weight-worker"


class VllmEngine(InferenceServer):
    """/pause /collective_rpc /update_weight_version /init_weight_transfer_engine
    /update_weights /v1/load_lora_adapter /v1/completions (VLLM_SERVER_DEV_MODE=1)
    """

    name = "vllm"
    pause_modes = ("abort", "wait", "keep")
    _info_route = "/weight_info"
    _adapter_routes = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")

    @cached_property
    def has_extension(self) -> bool:
        """Whether vLLM was started with our worker extension."""
        try:
            return EXTENSION_NAME in json.dumps(self._rpc("weight_worker"))
        except InferenceError:  # an unknown method; other errors surface later
            return False

    @property
    def native_group(self) -> bool:
        return not self.has_extension

    @property
    def opens_cuda_memory(self) -> bool:
        return self.has_extension

    @property
    def wants_untied_head(self) -> bool:
        # vLLM's CPU build answers a reload with 200 and keeps its packed copy of a tied
        # head. A separate head is always refreshed, and so does our extension.
        return not self.has_extension

    def require(self, publisher: str, adapter_name: str | None) -> None:
        if publisher in ("shared_memory", "node_disk") and not self.has_extension:
            raise ConfigError(f"start the vLLM at {self.url} with {EXTENSION}")
        if publisher == "distributed" and not self.has_extension:
            self._needs(
                "/init_weight_transfer_engine",
                f"start vLLM with {EXTENSION}, or with --weight-transfer-config"
                ' \'{"backend": "nccl"}\'',
            )
        if publisher == "lora":
            self._require_lora(adapter_name)

    def _require_lora(self, adapter_name: str | None) -> None:
        if self.http.has_route("/lora/load"):  # the original's server: active for all
            return
        self._needs(
            "/v1/load_lora_adapter",
            "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
        )
        self._needs_name(adapter_name, "vLLM", "that name as model")
        if adapter_name == self._base_model:
            raise ConfigError(
                f"vLLM at {self.url} serves its base model as {adapter_name!r} and refuses"
                " an adapter of that name; start it with another --served-model-name"
            )

    def pause(self, resume_after_s: float | None = None) -> None:
        self.http.post("/pause", params={"mode": self.pause_mode})

    def resume(self) -> None:
        self.http.post("/resume")

    def load(self, directory: str, version: int) -> None:
        if self.has_extension:
            self._rpc("load_checkpoint", path=directory)
        else:
            self._rpc("reload_weights", weights_path=directory)
        self._require_loaded(version)

    def load_adapter(self, directory: str, version: int, name: str | None) -> None:
        if self.http.has_route("/lora/load"):
            body = {"adapter_path": directory, "adapter_name": f"policy-v{version}"}
            self.http.post("/lora/load", body)
        elif name is None:
            raise self._cannot("lora")
        else:
            body = {"lora_name": name, "lora_path": directory}
            self.http.post("/v1/load_lora_adapter", {**body, "load_inplace": True})
            self._adapter = name
        self._require_loaded(version)

    def load_shared(self, path: str, version: int) -> None:
        self._rpc("load_shared", path=path, version=str(version))
        self._require_loaded(version)

    def copy_to_node(self, directory: str) -> tuple[str, int]:
        results = self._rpc("copy_to_node", path=directory)["results"]
        of_workers = [json.loads(result) for result in results]
        return of_workers[0][0], sum(copied_bytes for _, copied_bytes in of_workers)

    def ranks(self) -> int:
        answer = self.http.get("/get_world_size", optional=True) or {}
        return int(answer.get("world_size", 1))

    def join_group(self, group: GroupSpec, first_rank: int) -> None:
        if self.has_extension:
            body = json.dumps({**asdict(group), "first_rank": first_rank})
            self._rpc("join_weight_group", spec=body)
            return
        info = group.rendezvous(first_rank)
        self.http.post("/init_weight_transfer_engine", {"init_info": info})

    def receive(self, group: GroupSpec, buckets: Sequence[Bucket], version: int) -> None:
        # A single request for all buckets: the workers receive tensors as they arrive.
        whole = Bucket(
            [name for bucket in buckets for name in bucket.names],
            [dtype for bucket in buckets for dtype in bucket.dtypes],
            [shape for bucket in buckets for shape in bucket.shapes],
        )
        if self.has_extension:
            self._rpc(
                "receive_weights", spec=json.dumps({"name": group.name, **asdict(whole)})
            )
        else:
            self._receive_natively(whole)
        self._require_loaded(version)

    def _receive_natively(self, whole: Bucket) -> None:
        # From 0.17 on an update is bracketed; 0.16 has a single call.
        bracketed = self.http.has_route("/start_weight_update")
        if bracketed:
            self.http.post("/start_weight_update", {})
        info = {"names": whole.names, "dtype_names": whole.dtypes, "shapes": whole.shapes}
        self.http.post("/update_weights", {"update_info": info})
        if bracketed:
            self.http.post("/finish_weight_update", {})

    def leave_group(self, group: GroupSpec) -> None:
        if self.has_extension:
            self._rpc("leave_weight_group", name=group.name)
        else:
            self.http.post("/shutdown_weight_transfer_engine", optional=True)

    def label(self, version: int) -> None:
        # vLLM takes a string only, and under this name.
        self.http.post("/update_weight_version", {"new_version": str(version)})

    def dtype(self) -> str | None:
        return None

    def score(self, tokens: list[int]) -> list[float]:
        choice = self._complete(tokens, max_tokens=1, prompt_logprobs=0)
        return by_token(choice["prompt_logprobs"][1:], tokens[1:])

    def sample(
        self, tokens: list[int], count: int, temperature: float
    ) -> tuple[list[int], list[float]]:
        choice = self._complete(
            tokens,
            max_tokens=count,
            temperature=temperature,
            logprobs=0,
            return_token_ids=True,
        )
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        return choice["token_ids"], logprobs

    def _complete(self, prompt: Any, **settings: Any) -> dict[str, Any]:
        model = self._adapter or self._base_model
        body = {"model": model, "prompt": prompt, "temperature": 1.0, **settings}
        choice: dict[str, Any] = self.http.post("/v1/completions", body)["choices"][0]
        return choice

    @cached_property
    def _base_model(self) -> str:
        return str(self.http.get("/v1/models")["data"][0]["id"])

    def _rpc(self, method: str, **kwargs: str) -> Any:
        return self.http.post("/collective_rpc", {"method": method, "kwargs": kwargs})

    def _require_loaded(self, version: int) -> None:
        # Prefixes computed with the old weights must not be reused with the new weights.
        self.http.post("/reset_prefix_cache", optional=True)
        self.label(version)
