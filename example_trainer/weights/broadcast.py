"""Broadcast of a version: rank 0 sends, servers receive on an HTTP request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# In Python 3.10 the TimeoutError of futures is another class than the built-in one.
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ThreadPoolExecutor,
    TimeoutError as FutureTimeout,
    wait,
)
from dataclasses import fields
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import ConfigError, InferenceError
from atroposlib.utils.models import process_group
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.weights.engines import InferenceServer

# The HTTP error of a server that broke the group arrives at about the same time.
DISCONNECT_TIMEOUT_S = 10.0
# gloo raises plain RuntimeErrors, torch.distributed its DistError, a RuntimeError as well.
BROKEN = (InferenceError, RuntimeError)


class TorchGroup:
    """The trainer's side of a group of ``torch.distributed``: gloo or NCCL."""

    def __init__(self, group: GroupSpec, listener: Any, device: torch.device) -> None:
        self._spec = group
        self._device = device if group.backend == "nccl" else torch.device("cpu")
        self._members: Any = process_group.join_group(
            process_group.host_store(listener, group), group, 0
        )

    def send(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast the tensors in order; RuntimeError if the group is broken."""
        moved = [tensor.detach().to(self._device).contiguous() for tensor in tensors]
        works = [process_group.broadcast(self._members, tensor) for tensor in moved]
        for work in works:
            process_group.wait(work, self._spec)

    def close(self) -> None:
        """Leave the group; a blocked send in another thread fails."""
        # Dropped as well as aborted: only then do its connections close, which ends the
        # wait of the servers.
        entered, self._members = self._members, None
        if entered is not None:
            entered.abort()


class NativeGroup:
    """Rank 0 of the process group of vLLM's weight transfer engine."""

    def __init__(self, group: GroupSpec, listener: Any, device: torch.device) -> None:
        """Join the group; return when every worker has joined."""
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
        kind = meeting_places.StatelessProcessGroup
        # Not by its ``create``, which binds the port again: another process could be faster.
        meeting = kind(
            rank=0,
            world_size=group.world_size,
            store=process_group.host_store(listener, group, waits=True),
            # Older versions keep the socket in a field.
            **{field.name: None for field in fields(kind) if field.name == "socket"},
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


Group = TorchGroup | NativeGroup


class Transfer:
    """Broadcast bucket by bucket that stops at the first failure on either side.

    The sending runs in a thread, so that it never waits for a server that refused or died.
    """

    def __init__(
        self,
        group: Group,
        engines: Sequence[InferenceServer],
        receive: Callable[[InferenceServer], None],
    ) -> None:
        self._group = group
        self._engines = engines
        self._pool = ThreadPoolExecutor(len(engines) + 1, thread_name_prefix="publish")
        self._receiving = [self._pool.submit(receive, engine) for engine in engines]
        self._bucket: list[Tensor] = []
        self._problem: BaseException | None = None

    def add(self, tensor: Tensor) -> None:
        """Put a tensor into the bucket; after a failure the tensor is dropped."""
        if not self.is_broken:
            self._bucket.append(tensor)

    def flush(self) -> None:
        """Send the bucket; a failure is kept for :meth:`finish`."""
        bucket, self._bucket = self._bucket, []
        if self.is_broken:
            return
        sending: Future[None] = self._pool.submit(self._group.send, bucket)
        while not sending.done() and not self._has_refused():
            running = {f for f in self._receiving if not f.done()}
            wait({sending, *running}, return_when=FIRST_COMPLETED)
        if not sending.done():
            self._group.close()
        try:
            problem = sending.exception(DISCONNECT_TIMEOUT_S)
            # Its traceback would keep the group and its connections alive.
            self._problem = None if problem is None else problem.with_traceback(None)
        except FutureTimeout:
            self._problem = RuntimeError("the broadcast hangs although the group was closed")

    @property
    def is_broken(self) -> bool:
        return self._problem is not None or self._has_refused()

    def finish(self, timeout_s: float) -> list[tuple[str, object]]:
        """Wait for every server; return failures of servers, raise any further error."""
        broken = self.is_broken
        if broken:
            self._group.close()
        wait(self._receiving, DISCONNECT_TIMEOUT_S if broken else timeout_s)
        failed: list[tuple[str, object]] = []
        for engine, future in zip(self._engines, self._receiving):
            problem = future.exception() if future.done() else "has not received all in time"
            if problem is not None:
                failed.append((engine.url, problem))
        if not failed and self._problem is not None:
            failed.append(("the trainer's end", self._problem))
        for _, what in failed:
            if isinstance(what, BaseException) and not isinstance(what, BROKEN):
                raise what
        self._pool.shutdown(wait=False, cancel_futures=True)
        return failed

    def _has_refused(self) -> bool:
        return any(f.done() and f.exception() is not None for f in self._receiving)
