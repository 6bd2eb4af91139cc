"""The original's import path of :mod:`atroposlib.generation.engines.sglang`."""

from atroposlib.generation.engines.sglang import (
    GENERATE_PATH,
    SGLANG_NAMES,
    SGLangServer,
    generate_body,
    logprobs_body,
    read_generations,
    read_prompt_logprobs,
)

__all__ = [
    "GENERATE_PATH",
    "SGLANG_NAMES",
    "SGLangServer",
    "generate_body",
    "logprobs_body",
    "read_generations",
    "read_prompt_logprobs",
]
