"""vLLM's own group, for a vLLM without our worker extension: NCCL as its routes
/init_weight_transfer_engine and /update_weights expect it.

vLLM's ranks meet in a store and a communicator of vLLM's making, so this end is made of the
same parts and needs vllm in the trainer's environment. Written after vLLM 0.32; it needs a
GPU and has not been run.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.weights.engines import GroupSpec


class NativeGroup:
    """Rank 0 of the group of vLLM's weight transfer engine."""

    def __init__(self, group: GroupSpec, listener: Any, device: torch.device) -> None:
        """Joins; returns when every worker is there.

        Raises:
            ConfigError: vllm is not installed here, or the policy is not on a GPU.
        """
        if device.type != "cuda":
            raise ConfigError(
                "vLLM's own weight transfer needs the trainer on CUDA; start vLLM with the"
                " worker extension (docs/weights.md) to broadcast over gloo"
            )
        try:
            communicators = import_module("vllm.distributed.device_communicators.pynccl")
            meeting_places = import_module("vllm.distributed.utils")
        except ImportError as error:
            raise ConfigError(
                "vLLM's own weight transfer needs vllm in the trainer's environment; install"
                " it there, or start vLLM with the worker extension (docs/weights.md)"
            ) from error
        listener.close()  # its store listens by itself
        meeting = meeting_places.StatelessProcessGroup.create(
            host=group.address, port=group.port, rank=0, world_size=group.world_size
        )
        self._device = device
        self._communicator: Any = communicators.PyNcclCommunicator(meeting, device=device)

    def send(self, tensors: Sequence[Tensor]) -> None:
        stream = torch.cuda.current_stream(self._device)
        for tensor in tensors:
            moved = tensor.detach().to(self._device).contiguous()
            self._communicator.broadcast(moved, src=0, stream=stream)
        stream.synchronize()

    def close(self) -> None:
        if hasattr(self._communicator, "destroy"):  # newer than 0.16
            self._communicator.destroy()
