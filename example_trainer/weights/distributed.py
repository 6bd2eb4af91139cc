"""Publisher by broadcast: a process group of trainer and servers, without a file.

    trainer (rank 0)   gather -> cast -> broadcast, bucket by bucket
    servers            an HTTP request lists the tensors, received in that order

Further trainer ranks take part only in the gathering. The servers are paused throughout:
most engines write received tensors straight into the weights in use.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from atroposlib.errors import ConfigError, PublishFailed
from atroposlib.utils.models import process_group
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.model.state_dict import TensorSpec, export_weights, layout
from example_trainer.weights.broadcast import BROKEN, Group, NativeGroup, TorchGroup, Transfer
from example_trainer.weights.engines import Bucket, InferenceServer
from example_trainer.weights.fleet import call_all
from example_trainer.weights.publisher import Publisher

MIB = 2**20


class DistributedPublisher(Publisher):
    """Publishes by broadcast: for servers without a shared disk, or large models."""

    _spec: GroupSpec | None = None
    _group: Group | None = None
    _layout: Sequence[TensorSpec] = ()
    _joined: Sequence[InferenceServer] = ()
    renews = False  # a broadcast needs every rank

    def stage(self, policy: Policy, state: TrainerState) -> None:
        """Join a group, first and after a failure, while the servers keep generating."""
        self._layout = self._layout or layout(policy, untie_head=self.needs_untying(policy))
        run_on_rank0(policy.world, lambda: self._meet(policy.device))

    def apply(self, policy: Policy, staged: Path | None, version: int) -> bool:
        cuts = buckets(self._layout, self.cfg.publish_bucket_mb * MIB)
        last = {cut[-1].name for cut in cuts}
        transfer = self._begin(cuts, version) if self._group is not None else None
        # After a failure too, the other ranks need every tensor to be gathered.
        for name, tensor in export_weights(policy, untie_head=self.needs_untying(policy)):
            if transfer is not None:
                transfer.add(tensor)
                if name in last:
                    transfer.flush()
        return run_on_rank0(policy.world, lambda: self._end(transfer))

    @property
    def sent_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self._layout)

    def close(self) -> None:
        spec, group = self._spec, self._group
        self._spec = self._group = None
        if group is not None and spec is not None:
            answering = {*self.fleet.urls, *self.fleet.held}
            members = [engine for engine in self._joined if engine.url in answering]
            call_all(members, lambda engine: engine.leave_group(spec))
            group.close()

    def _meet(self, device: torch.device) -> None:
        self.fleet.gather()
        engines = self.fleet.present
        if self._group is not None and engines != self._joined:
            self.close()
        if self._group is not None or not engines:
            return
        address, port = self._meeting_place()
        ranks = [engine.ranks() for engine in engines]
        try:
            listener = process_group.listen(address, port)
        except OSError as error:
            raise ConfigError(f"publish_group_address {address}:{port}: {error}") from error
        spec = GroupSpec(
            address=address,
            port=listener.getsockname()[1],
            world_size=1 + sum(ranks),
            backend=self.cfg.publish_group_backend or self._backend(device),
            name=f"atropos-{secrets.token_hex(4)}",
            timeout_s=self.cfg.publish_timeout_s,
        )
        kind = NativeGroup if self._is_native() else TorchGroup
        with ThreadPoolExecutor(len(ranks)) as pool:
            joining: list[Future[None]] = [
                pool.submit(engine.join_group, spec, 1 + sum(ranks[:i]))
                for i, engine in enumerate(engines)
            ]
            problem: BaseException | None = None
            try:
                group: Group = kind(spec, listener, device)
            except BROKEN as error:
                problem = error
            refused = [
                (engine.url, why)
                for engine, future in zip(engines, joining)
                if (why := future.exception()) is not None
            ]
        failed = [f"{url}: {why}" for url, why in self.fleet.leave_out(refused)]
        if len(self.fleet.present) < len(engines) and not failed:
            return self._meet(device)
        if problem is not None or failed:
            raise PublishFailed(
                f"no group of the trainer and {len(ranks)} servers at {address}:{spec.port}:"
                f" {'; '.join(failed) or problem}. No server was touched."
            )
        self._group, self._spec, self._joined = group, spec, engines

    def _backend(self, device: torch.device) -> str:
        """NCCL needs a GPU per member: not two processes on a GPU, nor a server on a CPU."""
        shared = "", process_group.gpu_uuid(device)
        if device.type != "cuda" or any(engine.gpu() in shared for engine in self.engines):
            return "gloo"
        return "nccl"

    def _is_native(self) -> bool:
        engines = self.fleet.present
        native = [engine.url for engine in engines if engine.native_group]
        if native and len(native) < len(engines):
            raise ConfigError(
                f"{', '.join(native)} can only be in a group of vLLM's own, the other servers"
                " cannot; start those vLLM with the worker extension (docs/weights.md)"
            )
        return bool(native)

    def _meeting_place(self) -> tuple[str, int]:
        address = self.cfg.publish_group_address
        if address is None:
            return process_group.own_address(self.engines[0].url), 0
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"publish_group_address is host:port, not {address!r}")
        return host, int(port)

    def _begin(self, cuts: Sequence[Sequence[TensorSpec]], version: int) -> Transfer:
        group, spec = self._group, self._spec
        assert group is not None and spec is not None  # staged before
        layouts = [
            Bucket(
                names=[tensor.name for tensor in cut],
                dtypes=[tensor.dtype_name for tensor in cut],
                shapes=[list(tensor.shape) for tensor in cut],
            )
            for cut in cuts
        ]
        receive = self.fleet.measure_load(
            lambda engine: engine.receive(spec, layouts, version)
        )
        return Transfer(group, self._joined, receive)

    def _end(self, transfer: Transfer | None) -> bool:
        """False: a server was lost, and the rest need the broadcast again."""
        if transfer is None:
            return not self.engines
        failed = transfer.finish(self.cfg.publish_timeout_s)
        if not failed:
            return True
        self._group = None  # the rest of the broadcast is out of order
        self.fleet.leave_out(failed)
        if len(self.fleet.present) == len(self._joined):
            raise self.fleet.half_updated("broadcast to", failed)
        return False


def buckets(tensors: Sequence[TensorSpec], bytes_each: int) -> list[list[TensorSpec]]:
    """Split a layout into buckets of at most this many bytes, or of a single larger tensor."""
    cuts: list[list[TensorSpec]] = []
    room = 0
    for tensor in tensors:
        if not cuts or tensor.bytes > room:
            cuts.append([])
            room = bytes_each
        cuts[-1].append(tensor)
        room -= tensor.bytes
    return cuts
