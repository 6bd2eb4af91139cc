from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from atroposlib.utils.models import process_group


def test_process_group_is_compatible_with_one_made_by_torch():
    """SGLang's end is made by torch's own helper, with these prefixes."""
    import torch
    from torch.distributed import PrefixStore
    from torch.distributed.distributed_c10d import _new_process_group_helper

    listener = process_group.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    group = process_group.GroupSpec("127.0.0.1", port, 2, "gloo", "weights", 60.0)
    received = torch.zeros(3)

    def other_end():
        store = PrefixStore(group.name, process_group.guest_store(group))
        there, _ = _new_process_group_helper(
            2,
            1,
            [],
            "gloo",
            store,
            group_name=group.name,
            timeout=process_group.bind_device(group),
        )
        there.broadcast(received, 0).wait()

    thread = threading.Thread(target=other_end)
    thread.start()
    ours = process_group.join_group(process_group.host_store(listener, group), group, 0)
    process_group.broadcast(ours, torch.tensor([1.0, 2.0, 3.0])).wait()
    thread.join(600)
    assert received.tolist() == [1.0, 2.0, 3.0]


def test_store_waits_for_members_within_the_bound():
    """Those of vLLM report to the store; nothing else bounds the wait for them."""
    listener = process_group.listen("127.0.0.1", 0)
    group = process_group.GroupSpec(
        "127.0.0.1", listener.getsockname()[1], 2, "nccl", "weights", 0.1
    )
    with pytest.raises(RuntimeError, match="1/2 clients joined"):
        process_group.host_store(listener, group, waits=True)


def test_only_nccl_waits_with_a_bound():
    """Its wait without one returns before the tensor is there."""
    waits = []

    class Work:
        def wait(self, *bounds):
            waits.append(bounds)

    for backend in ("nccl", "gloo"):
        group = process_group.GroupSpec("127.0.0.1", 1, 2, backend, "weights", 20.0)
        process_group.wait(Work(), group)
    assert waits == [(process_group.bind_device(group),), ()]


def test_cpu_has_no_identifier_of_a_gpu():
    import torch

    assert process_group.gpu_uuid(torch.device("cpu")) == ""


def test_the_own_address_is_of_the_family_by_which_a_server_is_reached(monkeypatch):
    ipv6 = (socket.AF_INET6, socket.SOCK_DGRAM, 0, "", ("::1", 9001, 0, 0))
    ipv4 = (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 9001))
    found = [ipv6]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **options: found)
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        assert process_group.own_address("http://[fd00::7]:9001") == "::1"
    found.append(ipv4)
    assert process_group.own_address("http://node:9001") == "127.0.0.1"
