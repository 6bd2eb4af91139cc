"""The original's import path of :mod:`atroposlib.generation.engines.vllm`."""

from atroposlib.generation.engines.vllm import (
    ROUTE_ABSENT_STATUS,
    ROUTE_UNKNOWABLE_STATUS,
    VERSION_HEADER,
    VLLMServer,
)

__all__ = [
    "ROUTE_ABSENT_STATUS",
    "ROUTE_UNKNOWABLE_STATUS",
    "VERSION_HEADER",
    "VLLMServer",
]
