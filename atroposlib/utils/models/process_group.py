"""Process groups between trainer and servers, besides a process's existing groups.

The store and its prefixes follow ``torch.distributed``, laid out as in SGLang, so
that a rank of SGLang can be the peer. Imports nothing but torch: a worker of vLLM
imports this file.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed

from atroposlib.utils.http.sockets import is_loopback

dist: Any = torch.distributed  # its stubs leave out half of what is used here

# What NCCL's watchdog does after a broken or late collective. 2: abort the group. Its default
# ends the process: a server would die with the trainer.
NCCL_ERRORS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")


@dataclass(frozen=True)
class GroupSpec:
    """Rendezvous of trainer (rank 0) and servers for a broadcast of weights."""

    address: str
    port: int
    world_size: int
    backend: str  # nccl or gloo
    name: str
    timeout_s: float

    def rendezvous(self, first_rank: int) -> dict[str, Any]:
        """Return the fields of a request to join that SGLang and vLLM share."""
        return {
            "master_address": self.address,
            "master_port": self.port,
            "rank_offset": first_rank,
            "world_size": self.world_size,
        }


def bind_device(group: GroupSpec) -> timedelta:
    """Timeout of every wait of a member for its peers."""
    return timedelta(seconds=group.timeout_s)


def listen(address: str, port: int) -> socket.socket:
    """Bind the rendezvous port before it is sent to the servers; 0 chooses a free port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=2048)


def host_store(listener: socket.socket, group: GroupSpec, *, waits: bool = False) -> Any:
    """Create the store of a group, served by this process on ``listener`` alone.

    ``waits``: return when every member has connected, RuntimeError if a member is late. The
    members of vLLM's own group report that, and nothing else bounds the wait.
    """
    fd = listener.detach()
    return _store(group, is_master=True, master_listen_fd=fd, wait_for_workers=waits)


def guest_store(group: GroupSpec) -> Any:
    """Connect to the store of a group that another process serves."""
    return _store(group, is_master=False, wait_for_workers=False)


def _store(group: GroupSpec, **place: Any) -> Any:
    return dist.TCPStore(
        group.address,
        group.port,
        group.world_size,
        timeout=bind_device(group),
        **place,
    )


def join_group(store: Any, group: GroupSpec, rank: int) -> Any:
    """Join a group as member ``rank``; with gloo the call returns when all have joined.

    Raises RuntimeError: the members did not meet within the bound.
    """
    kind = "cuda" if group.backend == "nccl" else "cpu"
    for prefix in (group.name, f"{group.name}/", f"{kind}/"):
        store = dist.PrefixStore(prefix, store)
    if group.backend == "nccl":
        settings = dist.ProcessGroupNCCL.Options()
        settings._timeout = bind_device(group)
        name, value = NCCL_ERRORS
        before = os.environ.get(name)
        os.environ[name] = value  # read by the constructor, per group
        try:
            return dist.ProcessGroupNCCL(store, rank, group.world_size, settings)
        finally:
            os.environ.pop(name) if before is None else os.environ.update({name: before})
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = bind_device(group)
    near = is_loopback(group.address)
    options._devices = [
        gloo.create_device(hostname="127.0.0.1") if near else gloo.create_default_device()
    ]
    return gloo(store, rank, group.world_size, options)


def broadcast(members: Any, tensor: Any) -> Any:
    """Start to send (rank 0) or receive ``tensor`` in place; :func:`wait` for the result."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    return members.broadcast([tensor], options)


def wait(work: Any, group: GroupSpec) -> None:
    """Wait until a broadcast is complete here. Raises RuntimeError if it broke or is late."""
    if group.backend == "nccl":
        # Without a bound it only orders streams: a broken broadcast would look complete.
        work.wait(bind_device(group))
    else:
        work.wait()


def gpu_uuid(device: torch.device) -> str:
    """Return the identifier of a GPU, the same in every process; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def own_address(url: str) -> str:
    """Return the address of this machine that the server at ``url`` can reach."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or ""):
        return "127.0.0.1"
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    # The engines' rendezvous is older than IPv6, which is for hosts that have nothing else.
    family, kind, _, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    # No packet is sent: the system only selects the interface.
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        address: str = probe.getsockname()[0]
    return address
