"""Out of memory of a device as an error with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atroposlib.errors import OutOfDeviceMemory

REMEDY = (
    "Less memory by: half of max_tokens_per_microbatch (the gradient stays the same),"
    " gradient_checkpointing=true, optimizer=adamw_8bit or adafactor, optimizer=adamw with"
    " optimizer_offload=true, lora=true, cpu_offload=true, more ranks (trainer.nproc)."
    " Where a server uses the same GPU, give it less"
    " (inference.memory_share) or another one (inference.first_gpu, trainer.gpus)."
)


@contextmanager
def named_out_of_memory() -> Iterator[None]:
    """Raise OutOfDeviceMemory with the remedy where torch finds no memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).split(". ")[0]
        raise OutOfDeviceMemory(f"{reason}. {REMEDY}") from error
