"""Nodes in network namespaces, joined by a loop in user space that delays, drops and cuts.

Each node has a TUN device, of which this process holds the other end: all that a node sends to
another passes through the loop as an IP packet, so TCP behaves as on a bad network. Needs Linux,
root and /dev/net/tun; no kernel module for emulation.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

TUN = Path("/dev/net/tun")
SET_DEVICE, TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
CLONE_NEWNET = 0x40000000
PACKET_BYTES = 2048
SUBNET = "10.77.0"


def lacking() -> str | None:
    """Why there can be no network here; None if there can."""
    if os.geteuid() != 0 or not TUN.exists() or not shutil.which("ip"):
        return "network namespaces need root, /dev/net/tun and iproute2"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return f"no network namespace: {probe.stderr.decode()}" if probe.returncode else None


class Network:
    """Named nodes with an address each; ``delay_s`` and ``loss`` count for every packet."""

    def __init__(self, *names: str, delay_s: float = 0.0, loss: float = 0.0) -> None:
        self.delay_s, self.loss = delay_s, loss
        self._number = {name: n for n, name in enumerate(names, 1)}
        self._cut: set[frozenset[int]] = set()
        self._random = random.Random(0)
        self._stop, self._wake = os.pipe()
        self._device: dict[int, int] = {}  # number of a node -> the end of its device
        for name in names:
            self._add(name)
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    def _add(self, name: str) -> None:
        number, space = self._number[name], self._space(name)
        device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        made = struct.pack("16sH22x", space.encode(), TUN_WITHOUT_HEADER)
        fcntl.ioctl(device, SET_DEVICE, made)
        self._device[number] = device
        for words in (
            f"netns add {space}",
            f"link set {space} netns {space}",
            f"-n {space} address add {self.address(name)}/24 dev {space}",
            f"-n {space} link set {space} up",
            f"-n {space} link set lo up",
        ):
            subprocess.run(["ip", *words.split()], check=True)

    def _space(self, name: str) -> str:
        return f"at{os.getpid()}-{self._number[name]}"

    def address(self, name: str) -> str:
        return f"{SUBNET}.{self._number[name]}"

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """What this thread connects or starts within the block is on the node."""
        with (
            open("/proc/thread-self/ns/net") as own,
            open(f"/run/netns/{self._space(name)}") as other,
        ):
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def cut(self, one: str, other: str) -> None:
        """Drop every packet between two nodes from now on, without notice to either."""
        self._cut.add(frozenset((self._number[one], self._number[other])))

    def cut_off(self, name: str) -> None:
        """Drop every packet from and to a node, as if it had lost its power."""
        for other in self._number:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        os.close(self._wake)
        self._thread.join()
        for end in (self._stop, *self._device.values()):
            os.close(end)
        for name in self._number:
            subprocess.run(["ip", "netns", "delete", self._space(name)], check=False)

    def _run(self) -> None:
        # due (monotonic), order, to, packet
        on_the_way: list[tuple[float, int, int, bytes]] = []
        order = count()
        while True:
            left_s = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
            ready, _, _ = select.select([self._stop, *self._device.values()], [], [], left_s)
            if self._stop in ready:
                return
            for device in ready:
                packet = os.read(device, PACKET_BYTES)
                source, target = packet[15], packet[19]  # last bytes of the IPv4 addresses
                is_cut = frozenset((source, target)) in self._cut
                lost = is_cut or self._random.random() < self.loss
                if packet[0] >> 4 == 4 and target in self._device and not lost:
                    due = time.monotonic() + self.delay_s
                    heapq.heappush(on_the_way, (due, next(order), target, packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(on_the_way)
                os.write(self._device[target], packet)


def _enter(space: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no way into the network namespace")
