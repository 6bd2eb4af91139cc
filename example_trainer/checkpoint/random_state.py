"""State of the random number generators of a rank, as JSON."""

from __future__ import annotations

import base64
import random
import sys
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import CheckpointError


def capture_rng() -> dict[str, Any]:
    """Capture the generators of Python, torch on CPU and CUDA, and numpy if it is loaded."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": _text(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        state["cuda"] = _text(torch.cuda.get_rng_state())
    if "numpy" in sys.modules:
        import numpy

        kind, keys, place, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = [kind, [int(key) for key in keys], place, has_gauss, cached]
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Restore the result of :func:`capture_rng`; CheckpointError for anything else."""
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        torch.set_rng_state(_tensor(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(_tensor(state["cuda"]))
        if "numpy" in state:
            import numpy

            numpy.random.set_state(tuple(state["numpy"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"this is no state of random numbers: {error}") from error


def _text(tensor: Tensor) -> str:
    return base64.b64encode(bytes(tensor.tolist())).decode()


def _tensor(text: str) -> Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
