"""Ranks of the trainer: process group, sums, broadcasts, device of this rank.

Every rank runs the same loop on the plan of the whole batch and scores its share of the
micro-batches. FSDP2 gathers each layer's weights for its forward and for its backward, and
sums the gradients of all ranks into the shard of each. Only rank 0 calls the rollout API and
the servers and writes to disk; it shares the results.

    rank 0   claim -- share --> score -- sum --> step -- gather --> publish, save, ack
    rank 1            share --> score -- sum --> step -- gather -->

With a single rank torch.distributed is not initialised, unless ``cpu_offload`` needs FSDP.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from atroposlib.errors import ConfigError, RankLost
from atroposlib.processes.parent import end_with_parent
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.model import ModelSettings
from example_trainer.settings.run import RECOVERY_WRITE_S, OriginalSettings

TORCHRUN = "TORCHELASTIC_RUN_ID"  # set for each rank that torchrun starts
# Bound of loading Python and torch on every rank.
START_TIMEOUT_S = 600.0
# Time of rank 0 beyond the longest wait that its settings allow.
SLACK_S = 600.0


@dataclass(frozen=True)
class Ranks:
    """The ranks of a trainer and the place of this process.

    Collectives raise RankLost if a rank that they wait for ended or did not arrive.
    """

    rank: int  # number among the ranks that share the rows of a batch
    size: int
    device: torch.device = torch.device("cpu")
    tensor: int = 1  # ranks that compute the same rows, each with its part of the matrices
    tensor_rank: int = 0
    data_group: Any = None  # group of the ranks that share the rows; None: of all
    tensor_group: Any = None
    store: Any = None  # process group's; threads may use it, unlike collectives

    @staticmethod
    def single(device: torch.device | str = "cpu") -> Ranks:
        return Ranks(0, 1, torch.device(device))

    @property
    def is_rank0(self) -> bool:
        """Whether this rank calls other processes and writes files."""
        return self.rank == self.tensor_rank == 0

    @property
    def alone(self) -> bool:
        return self.size == self.tensor == 1

    @property
    def count(self) -> int:
        """Processes of the trainer."""
        return self.size * self.tensor

    @property
    def number(self) -> int:
        """Number of this process among all."""
        return self.rank * self.tensor + self.tensor_rank

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its sum over ranks; the same bits on each rank."""
        if self.size > 1:
            with self.waiting("a sum over all ranks"):
                dist.all_reduce(tensor, group=self.data_group)
        return tensor

    def sum_of_parts_(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its sum over the ranks that compute the same rows."""
        if self.tensor > 1:
            with self.waiting("a sum over a tensor group"):
                dist.all_reduce(tensor, group=self.tensor_group)
        return tensor

    def share(self, value: Any, kind: Any = Any) -> Any:
        """The value of rank 0 on every rank; values of ranks above 0 are ignored.

        Args:
            value: of JSON's types, or of types that msgspec converts to these. None elsewhere.
            kind: type to decode to. Without it, tuples arrive as lists on ranks above 0.
        """
        if self.alone:
            return value
        payload = bytearray(msgspec.msgpack.encode(value) if self.is_rank0 else b"")
        with self.waiting("a value of rank 0"):
            length = torch.tensor(len(payload))
            dist.broadcast(length, 0)
            content = torch.empty(int(length), dtype=torch.uint8)
            if self.is_rank0:
                content = torch.frombuffer(payload, dtype=torch.uint8)
            dist.broadcast(content, 0)
        if self.is_rank0:
            return value
        return msgspec.msgpack.decode(content.numpy().tobytes(), type=kind)

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by that of rank 0."""
        if not self.alone:
            with self.waiting("a tensor of rank 0"):
                dist.broadcast(tensor, 0)
        return tensor

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Raise RankLost with the awaited collective when another rank is lost."""
        try:
            yield
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            raise RankLost(
                f"rank {self.rank} of {self.size}, waiting for {what}: another rank ended or"
                f" did not come in time; see its output ({error})"
            ) from error


def _is_lost(error: RuntimeError) -> bool:
    # Gloo and FileStore raise plain RuntimeErrors, marked by their text only.
    marks = "/gloo/", "Wait timeout"
    return isinstance(error, dist.DistError) or any(mark in str(error) for mark in marks)


@contextmanager
def join_ranks(cfg: TrainingConfig, timeout_s: float | None = None) -> Iterator[Ranks]:
    """Join the process group of the ranks; leave it at the end.

    Under torchrun its variables RANK, WORLD_SIZE and LOCAL_RANK count, else the settings
    ``trainer_rank``, ``world_size`` and ``init_method``.

    Args:
        timeout_s: bound of every wait of a rank for another; the default leaves rank 0
            time for its longest wait (a batch, an evaluation, a publish).

    Raises:
        ConfigError: the settings name no place to meet, or a device that is not there.
        RankLost: a rank did not arrive, ended, or took longer than the bound.
    """
    if TORCHRUN in os.environ:
        end_with_parent()
    rank, size, local_rank = _place(cfg)
    device = _device(cfg, size, local_rank)
    world = Ranks(rank, size, device)
    if size % cfg.tensor_parallel:
        raise ConfigError(
            f"tensor_parallel {cfg.tensor_parallel} does not divide the {size} ranks: start a"
            " multiple of it"
        )
    if size == 1 and not cfg.cpu_offload:
        yield world
        return
    longest = max(
        cfg.batch_timeout_s, cfg.eval_timeout_s, cfg.publish_timeout_s, RECOVERY_WRITE_S
    )
    bound_s = timeout_s or longest + SLACK_S
    world = replace(world, store=_meet(cfg.init_method, world, bound_s))
    world = in_a_grid(world, cfg.tensor_parallel, bound_s)
    try:
        with world.waiting("the gradients and weights of a step"):
            yield world
    except BaseException:
        # Closing NCCL would wait for ranks that wait for this rank; its exit ends their wait.
        if device.type != "cuda":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def end_process(status: int) -> NoReturn:
    """End this process without finalizing Python.

    After the last collective a thread of gloo can hold the last reference to a tensor for a
    moment; if it drops it while Python is finalizing, the process aborts and torchrun reports
    a finished run as failed (pytorch/pytorch#179291).
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _place(settings: OriginalSettings) -> tuple[int, int, int]:
    """(rank, size, rank on this host)."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return rank, size, int(os.environ.get("LOCAL_RANK", rank))
    rank, size = settings.trainer_rank, settings.world_size
    if rank >= size:
        raise ConfigError(f"trainer_rank {rank} must be below world_size {size}")
    return rank, size, rank % max(1, torch.cuda.device_count())


def resolve_device(name: str) -> str:
    """The kind of device that ``auto`` is on this host; explicit names stay as they are."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _device(settings: ModelSettings, size: int, local_rank: int) -> torch.device:
    """The device of this rank; ``cuda`` without a number is that of its local rank."""
    device = torch.device(resolve_device(settings.device))
    if settings.cpu_offload and device.type != "cuda":
        raise ConfigError("cpu_offload empties a CUDA device; on cpu there is none to empty")
    if device.type != "cuda":
        return device
    if device == torch.device("cuda") and (size > 1 or settings.cpu_offload):
        device = torch.device("cuda", local_rank)
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {device} is not there: this host has {torch.cuda.device_count()};"
            " start at most that many ranks on it"
        )
    torch.cuda.set_device(device)
    return device


def _meet(init_method: str, world: Ranks, timeout_s: float) -> Any:
    """Initialise the process group; return its store."""
    if world.size == 1:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
    else:
        torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
        method = "env://" if torchrun else init_method
        if method == "env://" and "MASTER_ADDR" not in os.environ:
            raise ConfigError(
                f"world_size {world.size} needs a place to meet: start with torchrun, or set"
                " init_method to tcp://host:port or file:///shared/path"
            )
        store = _meet_at(method, world)
    # Values of the loop are CPU tensors on any device, and gloo carries CPU tensors.
    backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    with world.waiting("the connection to all ranks"):
        dist.init_process_group(
            backend,
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout_s),
        )
    return store


def in_a_grid(world: Ranks, tensor: int, timeout_s: float) -> Ranks:
    """The rank in a grid: neighbours share matrices, each ``tensor``-th rank shares rows."""
    if tensor == 1:
        return world
    grid = torch.arange(world.size).view(-1, tensor)
    tensor_group, data_group = (
        dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
            ranks.tolist(), timeout=timedelta(seconds=timeout_s)
        )[0]
        for ranks in (grid, grid.T)
    )
    row, column = divmod(world.rank, tensor)
    return Ranks(
        rank=row,
        size=len(grid),
        device=world.device,
        tensor=tensor,
        tensor_rank=column,
        data_group=data_group,
        tensor_group=tensor_group,
        store=world.store,
    )


def _meet_at(method: str, world: Ranks) -> Any:
    """The store where ranks meet, once all ranks are there."""
    bound = timedelta(seconds=START_TIMEOUT_S)
    with world.waiting(f"all ranks at {method}"):
        store, _, _ = next(rendezvous(method, world.rank, world.size, timeout=bound))
        store.set(f"arrived/{world.rank}", b"")
        store.wait([f"arrived/{rank}" for rank in range(world.size)], bound)
    return store
