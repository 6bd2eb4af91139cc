"""Client of SGLang. Its pause cannot wait; aborted requests return their partial output."""

from __future__ import annotations

from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.weights.engines.http import CHOOSE, InferenceServer


class SglangEngine(InferenceServer):
    """/pause_generation /update_weights_from_disk /init_weights_update_group
    /update_weights_from_distributed /load_lora_adapter /server_info /generate
    """

    name = "sglang"
    pause_modes = ("abort", "keep")
    _adapter_routes = ("/load_lora_adapter", "/unload_lora_adapter")

    def require(self, publisher: str, adapter_name: str | None) -> None:
        if publisher in ("shared_memory", "node_disk"):
            raise self._cannot(publisher)
        if publisher == "distributed":
            self._needs("/init_weights_update_group", "SGLang 0.4 or newer has it")
            info = self.http.get("/server_info")
            if int(info.get("dp_size") or 1) > 1 and not info.get("enable_dp_attention"):
                raise ConfigError(  # its copies would all join as the same ranks
                    f"the SGLang at {self.url} runs --dp-size {info['dp_size']} copies, which"
                    " cannot join one group: add --enable-dp-attention, start a server per"
                    f" copy and name each in --inference-urls, or {CHOOSE}"
                )
        if publisher == "lora":
            self._needs_name(adapter_name, "SGLang", "<served model>:<that name>")
            self._needs("/load_lora_adapter", "start SGLang with --enable-lora")

    def pause(self, resume_after_s: float | None = None) -> None:
        # A retracted request is computed again from its tokens; "in_place" would keep old KV.
        mode = "retract" if self.pause_mode == "keep" else self.pause_mode
        self.http.post("/pause_generation", {"mode": mode})

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

    def _bucket_fields(self, version: int, is_last: bool) -> dict[str, Any]:
        # Until the last bucket the weights are an unlabelled mixture.
        label = {"weight_version": str(version)} if is_last else {}
        return {"flush_cache": is_last, **label}

    def label(self, version: int) -> None:
        body = {"new_version": str(version), "abort_all_requests": False}
        self.http.post("/update_weight_version", body)

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
