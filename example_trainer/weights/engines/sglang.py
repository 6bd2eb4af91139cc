"""Client of SGLang. Its pause cannot wait; aborted requests return their partial
output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.weights.engines.http import (
    Bucket,
    OverHttp,
    invitation,
    must_succeed,
    version_name,
)
from example_trainer.weights.engines.process_group import GroupSpec


class SglangEngine(OverHttp):
    """/pause_generation /update_weights_from_disk /init_weights_update_group
    /update_weights_from_distributed /load_lora_adapter /server_info /generate
    """

    name = "sglang"

    def __init__(self, http: Any) -> None:
        super().__init__(http)
        self._adapter: str | None = None  # model name of requests; set by the first load

    def require(self, publisher: str, adapter_name: str | None) -> None:
        if publisher == "shared_memory":
            raise self._cannot(publisher)
        if publisher == "distributed":
            self._needs("/init_weights_update_group", "SGLang 0.4 or newer has it")
        if publisher == "lora":
            if adapter_name is None:
                raise ConfigError(
                    f"SGLang at {self.url} applies an adapter only to requests that name it."
                    " Set --publish-adapter-name and let the environments ask for"
                    " <served model>:<that name>, or use --weight-publisher disk, which"
                    " publishes merged weights"
                )
            self._needs("/load_lora_adapter", "start SGLang with --enable-lora")

    def pause(self, resume_after_s: float | None = None) -> None:
        self.http.post("/pause_generation", {"mode": "abort"})

    def resume(self) -> None:
        self.http.post("/continue_generation", {})

    def load(self, directory: str, version: int) -> None:
        body = {"model_path": directory, "weight_version": str(version), "flush_cache": True}
        self._update("/update_weights_from_disk", body)

    def load_adapter(self, directory: str, version: int, name: str | None) -> None:
        if name is None:
            raise self._cannot("lora")
        if self._adapter is not None:  # a name can be loaded only once
            self.http.post("/unload_lora_adapter", {"lora_name": name})
        body = {"lora_name": name, "lora_path": directory}
        self._update("/load_lora_adapter", body)
        self._adapter = name
        self.http.post("/flush_cache", optional=True)
        self.label(version)

    def ranks(self) -> int:
        info = self.http.get("/server_info")
        return int(info.get("tp_size") or 1) * int(info.get("pp_size") or 1)

    def join_group(self, group: GroupSpec, first_rank: int) -> None:
        self._update("/init_weights_update_group", invitation(group, first_rank))

    def receive(self, group: GroupSpec, buckets: Sequence[Bucket], version: int) -> None:
        for i, bucket in enumerate(buckets):
            last = i == len(buckets) - 1
            body = {**bucket.described(group), "flush_cache": last}
            if last:  # until then the weights are an unlabelled mixture
                body["weight_version"] = str(version)
            self._update("/update_weights_from_distributed", body)

    def leave_group(self, group: GroupSpec) -> None:
        self.http.post(
            "/destroy_weights_update_group", {"group_name": group.name}, optional=True
        )

    def label(self, version: int) -> None:
        body = {"new_version": str(version), "abort_all_requests": False}
        self.http.post("/update_weight_version", body)

    def version(self) -> str | None:
        return version_name(self.http.get("/server_info").get("weight_version"))

    def dtype(self) -> str | None:
        dtype = self.http.get("/server_info").get("dtype")
        return None if dtype in (None, "auto") else str(dtype)

    def token_ids(self, text: str) -> list[int]:
        answer = self._generate({"text": text})
        return [int(entry[1]) for entry in answer["input_token_logprobs"]]

    def score(self, tokens: list[int]) -> list[float]:
        entries = self._generate({"input_ids": tokens})["input_token_logprobs"]
        return [float(entry[0]) for entry in entries[1:]]

    def sample(
        self, tokens: list[int], count: int, temperature: float
    ) -> tuple[list[int], list[float]]:
        entries = self._generate({"input_ids": tokens}, count, temperature)
        pairs = entries["output_token_logprobs"]
        return [int(entry[1]) for entry in pairs], [float(entry[0]) for entry in pairs]

    def _generate(
        self, prompt: dict[str, Any], count: int = 1, temperature: float = 1.0
    ) -> dict[str, Any]:
        body = {
            **prompt,
            "sampling_params": {"max_new_tokens": count, "temperature": temperature},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        if self._adapter is not None:
            body["lora_path"] = self._adapter
        meta: dict[str, Any] = self.http.post("/generate", body)["meta_info"]
        return meta

    def _update(self, path: str, body: dict[str, Any]) -> None:
        must_succeed(self.http.post(path, body), path)
