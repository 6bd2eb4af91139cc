"""Weights by broadcast: a process group of the trainer (rank 0) and the servers.

Tensors are collected in separate memory and copied into the served weights only after the
last one has arrived, so a trainer that dies in between changes nothing.
The store and its prefixes are those of ``torch.distributed``, as SGLang lays them out.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from atroposlib.errors import InferenceRefused, WeightsError
from atroposlib.inference.http.protocol import InitWeightsGroup, UpdateFromGroup
from atroposlib.utils.http_server import is_loopback

dist: Any = torch.distributed  # its stubs leave out half of what is used here
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class WeightGroup:
    """Membership of this server in one group, and the tensors received since the last take."""

    def __init__(self, body: InitWeightsGroup, device: torch.device) -> None:
        """Join the group; return when every member has joined.

        Raises:
            WeightsError: not every member joined within ``timeout_s``.
        """
        self.name = body.group_name
        self.staged: dict[str, Tensor] = {}
        self._device = device if body.backend == "nccl" else torch.device("cpu")
        bound = timedelta(seconds=body.timeout_s)
        try:
            store = dist.TCPStore(
                body.master_address,
                body.master_port,
                body.world_size,
                is_master=False,
                timeout=bound,
                wait_for_workers=False,
            )
            self._members: Any = join(store, body, bound)
        except (RuntimeError, ValueError) as cause:  # DistError is a RuntimeError
            raise WeightsError(
                f"no group at {body.master_address}:{body.master_port}: {_line(cause)}"
            ) from cause

    def receive(self, body: UpdateFromGroup) -> None:
        """Take part in one broadcast per name.

        Raises:
            WeightsError: a broadcast failed; tensors received before are dropped too.
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        try:
            for name, dtype, shape in zip(body.names, body.dtypes, body.shapes):
                tensor = torch.empty(shape, dtype=DTYPES[dtype], device=self._device)
                self._members.broadcast([tensor], options).wait()
                self.staged[name] = tensor
        except RuntimeError as cause:
            self.staged = {}
            raise WeightsError(f"a broadcast did not arrive: {_line(cause)}") from cause

    def take(self) -> dict[str, Tensor]:
        """Return the received tensors and release them here."""
        staged, self.staged = self.staged, {}
        return staged

    def close(self) -> None:
        self.staged = {}
        entered, self._members = self._members, None  # its connections close with it
        if entered is not None:
            entered.abort()


class WeightGroups:
    """The one group of a server. Calls come from many threads of the HTTP server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: WeightGroup | None = None

    def join(self, body: InitWeightsGroup, device: torch.device) -> None:
        """Join a group; an earlier one, of a trainer that died, is left first."""
        with self._lock:
            self._leave()
            self._group = WeightGroup(body, device)

    def receive(self, body: UpdateFromGroup) -> dict[str, Tensor] | None:
        """Collect the tensors of one message; return all of them with the last message."""
        with self._lock:
            if self._group is None or self._group.name != body.group_name:
                raise InferenceRefused(
                    400, f"this server is not in a group {body.group_name!r}"
                )
            self._group.receive(body)
            return self._group.take() if body.final else None

    def leave(self, name: str) -> None:
        with self._lock:
            if self._group is not None and self._group.name == name:
                self._leave()

    def close(self) -> None:
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()


def join(store: Any, body: InitWeightsGroup, bound: timedelta) -> Any:
    """A member of the group behind ``store``, without touching torch's default group."""
    kind = "cuda" if body.backend == "nccl" else "cpu"
    for prefix in (body.group_name, f"{body.group_name}/", f"{kind}/"):
        store = dist.PrefixStore(prefix, store)
    if body.backend == "nccl":
        settings = dist.ProcessGroupNCCL.Options()
        settings._timeout = bound
        return dist.ProcessGroupNCCL(store, body.rank_offset, body.world_size, settings)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = bound
    near = is_loopback(body.master_address)
    gloo = dist.ProcessGroupGloo
    options._devices = [
        gloo.create_device(hostname="127.0.0.1") if near else gloo.create_default_device()
    ]
    return gloo(store, body.rank_offset, body.world_size, options)


def _line(cause: BaseException) -> str:
    return str(cause).split("\n")[0]
