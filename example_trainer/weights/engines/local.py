"""Client of the server of ``atroposlib.inference``. It supports every publisher."""

from __future__ import annotations

from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.weights.engines.http import InferenceServer, by_token

LONGEST_PAUSE_S = 3600.0  # the server accepts no longer timeout


class LocalEngine(InferenceServer):
    """/pause /update_weights_from_disk /update_weights_from_shared_memory
    /init_weights_update_group /v1/load_lora_adapter /server_info /generate
    """

    name = "local"
    pause_modes = ("wait", "abort", "keep")

    def require(self, publisher: str, adapter_name: str | None) -> None:
        if publisher == "lora" and adapter_name is not None:
            raise ConfigError(
                f"the server at {self.url} merges the adapter into the model it serves:"
                " every request gets it, leave --publish-adapter-name out"
            )
        route = {
            "node_disk": "/copy_to_node",
            "shared_memory": "/update_weights_from_shared_memory",
            "distributed": "/init_weights_update_group",
            "lora": "/v1/load_lora_adapter",
        }.get(publisher)
        if route is not None:
            self._needs(route, "start the atropos-infer of this version")

    def pause(self, resume_after_s: float | None = None) -> None:
        # The server's default timeout is a minute; this is the user's setting.
        params: dict[str, Any] = {
            "mode": self.pause_mode,
            "timeout_s": min(self.http.timeout_s, LONGEST_PAUSE_S),
        }
        if resume_after_s is not None:
            params["resume_after_s"] = resume_after_s
        self.http.post("/pause", params=params)

    def resume(self) -> None:
        self.http.post("/resume")

    def load(self, directory: str, version: int) -> None:
        body = {"model_path": directory, "weight_version": version}
        self._update("/update_weights_from_disk", body)

    def load_adapter(self, directory: str, version: int, name: str | None) -> None:
        body = {"lora_path": directory, "weight_version": version}
        self._update("/v1/load_lora_adapter", {"lora_name": f"policy-v{version}", **body})

    def load_shared(self, path: str, version: int) -> None:
        body = {"path": path, "weight_version": version}
        self._update("/update_weights_from_shared_memory", body)

    def copy_to_node(self, directory: str) -> tuple[str, int]:
        answer = self.http.post("/copy_to_node", {"path": directory})
        return str(answer["path"]), int(answer["copied_bytes"])

    def _invitation(self, group: GroupSpec, first_rank: int) -> dict[str, Any]:
        return {**super()._invitation(group, first_rank), "timeout_s": group.timeout_s}

    def _bucket_fields(self, version: int, is_last: bool) -> dict[str, Any]:
        return {"weight_version": version, "final": is_last}

    def label(self, version: int) -> None:
        self.http.post("/update_weight_version", {"weight_version": version})

    def score(self, tokens: list[int]) -> list[float]:
        # No token is generated, so a paused server replies too.
        answer = self._generate(tokens, max_tokens=0, prompt_logprobs=0)
        return by_token(answer["prompt_logprobs"][1:], tokens[1:])

    def sample(
        self, tokens: list[int], count: int, temperature: float
    ) -> tuple[list[int], list[float]]:
        answer = self._generate(tokens, max_tokens=count, temperature=temperature)
        sampled: list[int] = answer["token_ids"][0]
        return sampled, by_token(answer["logprobs"][0], sampled)

    def _generate(self, tokens: list[int], **settings: Any) -> Any:
        body = {"prompt": {"prompt_token_ids": tokens}, "temperature": 1.0, "logprobs": 0}
        return self.http.post("/generate", {**body, **settings})
