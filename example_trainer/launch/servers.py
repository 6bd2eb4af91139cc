"""The command line of an inference server, for each engine the trainer can publish to."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from typing import Literal

from atroposlib.errors import ConfigError
from atroposlib.utils.http.sockets import is_loopback

Engine = Literal["local", "vllm", "sglang"]
WORKER_EXTENSION = "example_trainer.weights.vllm_worker.WeightWorker"
FLOAT32_HEAD = '{"head_dtype": "float32"}'
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # minimum for vLLM's kernels
# Engine -> type of the server in the settings of an environment.
CHAT_TYPES = {"local": "vllm", "vllm": "vllm", "sglang": "sglang"}
# Module to run, and the names of its options for model, tokens of a sequence, and seed.
PROGRAMS = {
    "local": ("atroposlib.inference", "--model", "--max-model-len", "--seed"),
    "vllm": ("vllm.entrypoints.openai.api_server", "--model", "--max-model-len", "--seed"),
    "sglang": ("sglang.launch_server", "--model-path", "--context-length", "--random-seed"),
}


@dataclass(frozen=True)
class ServerCommand:
    """Command of a server. ``memory_share`` of each of its GPUs; lengths in tokens."""

    engine: Engine
    model: str
    host: str
    port: int
    python: str = sys.executable
    tensor_parallel: int = 1
    gpus: str | None = None  # CUDA_VISIBLE_DEVICES
    memory_share: float | None = None
    float32_head: bool | None = None  # None: where it costs nothing
    max_model_len: int | None = None
    dtype: str | None = None
    extended: bool = True  # vLLM's workers import this package, for weights from memory
    lora_rank: int | None = None  # an adapter will be published
    seed: int | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        module, model, max_tokens, seed = PROGRAMS[self.engine]
        words: tuple[str, ...] = (self.python, "-m", module, model, self.model)
        words += ("--host", self.host, "--port", str(self.port))
        words += option("--dtype", self.dtype) + option(max_tokens, self.max_model_len)
        words += option(seed, self.seed)
        own = {"local": _local, "vllm": _vllm, "sglang": _sglang}[self.engine](self)
        return (*words, *own, *self.args)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables added to the caller's."""
        env = dict(self.env)
        if self.gpus is not None:
            env.setdefault("CUDA_VISIBLE_DEVICES", self.gpus)
        if self.engine == "vllm":
            # Opens pause, reload and version routes: for a private network only.
            env.setdefault("VLLM_SERVER_DEV_MODE", "1")
            if self.lora_rank is not None:
                env.setdefault("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
        return env


def dtype_of_logits(engine: Engine, float32_head: bool | None) -> str:
    """Precision of a server's logits: ``float32``, or that of its model."""
    by_default = engine != "sglang"
    is_wide = engine == "local" or (by_default if float32_head is None else float32_head)
    return "float32" if is_wide else "the model's dtype"


def choose_engine(wanted: Engine | Literal["auto"]) -> Engine:
    """Resolve ``auto``: vLLM if it is installed, else the server of this repository."""
    if wanted == "auto":
        return "vllm" if importlib.util.find_spec("vllm") is not None else "local"
    return wanted


def require_engine(engine: Engine, python: str | None = None) -> None:
    """Raise ConfigError if the server's package is missing here; ``python`` may have it."""
    package = PROGRAMS[engine][0].partition(".")[0]
    if python is None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{engine} is not installed here: pip install {engine}, or write inference.engine=local"
            " (in AReaL's terms allocation_mode=local:d1+d1) for the server of atroposlib"
        )


def option(name: str, value: object) -> tuple[str, ...]:
    return () if value is None else (name, str(value))


def _local(s: ServerCommand) -> tuple[str, ...]:
    return () if is_loopback(s.host) else ("--allow-remote",)


def _vllm(s: ServerCommand) -> tuple[str, ...]:
    words: tuple[str, ...] = ("--tensor-parallel-size", str(s.tensor_parallel))
    # Logprobs of the sampling distribution, after temperature, as the trainer computes them.
    words += ("--logprobs-mode", "processed_logprobs")
    # Nor the model's own generation_config.json, for requests that name no penalty.
    words += ("--generation-config", "vllm")
    words += ("--worker-extension-cls", WORKER_EXTENSION) if s.extended else ()
    # A single product with float32 sums that are not rounded. Versions before 0.26 ignore it.
    if dtype_of_logits("vllm", s.float32_head) == "float32" and "--hf-overrides" not in s.args:
        words += ("--hf-overrides", FLOAT32_HEAD)
    words += option("--gpu-memory-utilization", s.memory_share)
    if s.lora_rank is not None:
        fitting = next((rank for rank in LORA_RANKS if rank >= s.lora_rank), s.lora_rank)
        words += ("--enable-lora", "--max-lora-rank", str(fitting))
    return words


def _sglang(s: ServerCommand) -> tuple[str, ...]:
    words: tuple[str, ...] = ("--tp", str(s.tensor_parallel))
    # Defaults of the API, not of the model's generation_config.json.
    words += ("--sampling-defaults", "openai")
    words += ("--enable-fp32-lm-head",) if s.float32_head else ()
    words += option("--mem-fraction-static", s.memory_share)
    if s.lora_rank is not None:
        words += ("--enable-lora", "--max-lora-rank", str(s.lora_rank))
    return words
