"""Weights through memory of the machine that trainer and servers share.

Main memory: one private file in /dev/shm that servers map read-only and copy. Between
two GPUs of vLLM and the trainer: one buffer on the trainer's GPU, whose CUDA handle the
workers open; it is described in the original's bridge file (``vllm_config_path``).

The buffer is written while servers generate: they look at it only when they are told to,
paused, and copy it, so the trainer never writes into weights that are in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from example_trainer.distributed.collectives import on_first
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights.base import Announce
from example_trainer.weights.cuda_buffer import CudaBuffer
from example_trainer.weights.engines import Engine
from example_trainer.weights.export import Placed, layout, outgoing
from example_trainer.weights.fleet import FleetPublisher
from example_trainer.weights.shared_file import SharedWeightsFile

BRIDGE_FILE = "vllm_bridge_config.json"


class Buffer(Protocol):
    """Memory that holds one version, and the path by which servers find it."""

    path: Path

    def write(self, tensors: Iterator[tuple[str, Tensor]], version: int) -> None: ...

    def remove(self) -> object: ...


class SharedMemoryPublisher(FleetPublisher):
    """The fastest where all are on one machine; nothing touches a disk."""

    def __init__(
        self, cfg: TrainingConfig, engines: Sequence[Engine], announce: Announce | None
    ) -> None:
        super().__init__(cfg, engines, announce)
        self._buffer: Buffer | None = None
        self._placed: list[Placed] = []

    def stage(self, policy: Policy, state: TrainerState) -> Path | None:
        if not self._placed:
            self._placed = layout(policy, untie_head=self.unties(policy))
        on_first(policy.world, lambda: self._make_buffer(policy))
        tensors = outgoing(policy, untie_head=self.unties(policy))
        if self._buffer is None:
            for _ in tensors:  # this rank only takes part in the gathering
                pass
            return None
        self._buffer.write(tensors, state.version)
        return self._buffer.path

    def apply(self, policy: Policy, staged: Path | None, version: int) -> None:
        def load() -> None:
            self.fleet.load(lambda engine: engine.load_shared(str(staged), version))

        on_first(policy.world, load)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.remove()
            self._buffer = None

    def _make_buffer(self, policy: Policy) -> None:
        if self._buffer is not None:
            return
        if policy.device.type == "cuda" and all(e.opens_cuda_memory for e in self.engines):
            given = self.cfg.vllm_config_path
            path = Path(given) if given else self.cfg.published.resolve() / BRIDGE_FILE
            self._buffer = CudaBuffer(self._placed, policy.device, path, self.cfg.model_name)
        else:
            self._buffer = SharedWeightsFile(self._placed)
