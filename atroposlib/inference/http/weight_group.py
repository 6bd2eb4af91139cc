"""Weights by broadcast: a process group of the trainer (rank 0) and the servers.

Tensors are collected in separate memory and copied into the served weights only after the
last tensor has arrived, so a trainer that dies in between changes nothing.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import InferenceRefused, WeightsError
from atroposlib.inference.http.protocol import InitWeightsGroup, UpdateFromGroup
from atroposlib.utils.models.process_group import (
    GroupSpec,
    broadcast,
    guest_store,
    join_group,
    wait,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class WeightGroup:
    """Membership of this server in at most a single group, and the tensors received from it.

    Calls come from many threads of the HTTP server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: Any = None
        self._spec: GroupSpec | None = None
        self._device = torch.device("cpu")
        self._staged: dict[str, Tensor] = {}

    def join(self, body: InitWeightsGroup, device: torch.device) -> None:
        """Leave an earlier group and join the given group. Raises WeightsError for late members."""
        group = GroupSpec(
            body.master_address,
            body.master_port,
            body.world_size,
            body.backend,
            body.group_name,
            body.timeout_s,
        )
        with self._lock:
            self._leave()
            try:
                self._members = join_group(guest_store(group), group, body.rank_offset)
            except (RuntimeError, ValueError) as cause:  # DistError is a RuntimeError
                raise WeightsError(
                    f"no group at {group.address}:{group.port}: {_line(cause)}"
                ) from cause
            self._spec = group
            self._device = device if group.backend == "nccl" else torch.device("cpu")

    def receive(self, body: UpdateFromGroup) -> dict[str, Tensor] | None:
        """Take part in a broadcast per name; return all tensors with the last message.

        Raises WeightsError if a broadcast fails; tensors received before are dropped too.
        """
        with self._lock:
            spec = self._spec
            if spec is None or spec.name != body.group_name:
                raise InferenceRefused(
                    400, f"this server is not in a group {body.group_name!r}"
                )
            try:
                for name, dtype, shape in zip(body.names, body.dtypes, body.shapes):
                    tensor = torch.empty(shape, dtype=DTYPES[dtype], device=self._device)
                    wait(broadcast(self._members, tensor), spec)
                    self._staged[name] = tensor
            except RuntimeError as cause:
                self._staged = {}
                raise WeightsError(f"a broadcast did not arrive: {_line(cause)}") from cause
            if not body.final:
                return None
            staged, self._staged = self._staged, {}
            return staged

    def leave(self, name: str | None = None) -> None:
        """Leave the group, if it has this name."""
        with self._lock:
            if name is None or (self._spec is not None and self._spec.name == name):
                self._leave()

    def _leave(self) -> None:
        entered, self._members = self._members, None  # its connections close with it
        self._spec, self._staged = None, {}
        if entered is not None:
            entered.abort()


def _line(cause: BaseException) -> str:
    return str(cause).split("\n")[0]
