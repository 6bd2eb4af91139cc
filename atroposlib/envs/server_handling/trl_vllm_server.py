"""The original's import path of :mod:`atroposlib.generation.engines.trl`."""

from atroposlib.generation.engines.trl import (
    FIELDS,
    GENERATE_PATH,
    UNPROCESSABLE,
    TrlVllmServer,
    finish_reason,
    generate_body,
    read_generations,
    up_to_eos,
)

__all__ = [
    "FIELDS",
    "GENERATE_PATH",
    "TrlVllmServer",
    "UNPROCESSABLE",
    "finish_reason",
    "generate_body",
    "read_generations",
    "up_to_eos",
]
