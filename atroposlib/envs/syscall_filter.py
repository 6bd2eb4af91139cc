"""System calls that the programs of a sandbox do without, as a filter of seccomp.

Namespaces do not cover keyrings, io_uring, BPF, performance counters, userfaultfd and sockets of
the hypervisor (AF_VSOCK). A program is the classic BPF of seccomp(2): eight bytes per instruction.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, JEQ, JGE, RET
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_X32 = 0x40000000  # numbers from here on are of the x32 interface of x86_64
_AF_VSOCK = 40
_JOIN_SESSION_KEYRING = 1


@dataclass(frozen=True)
class Machine:
    """Numbers of an architecture: its own number and the numbers of system calls."""

    architecture: int  # AUDIT_ARCH_...
    socket: int
    keyctl: int
    refused: tuple[int, ...]  # refused calls in addition to keyctl


MACHINES: Mapping[str, Machine] = {
    # refused: add_key, request_key, io_uring_setup, io_uring_enter, io_uring_register, bpf,
    # perf_event_open, userfaultfd
    "x86_64": Machine(0xC000003E, 41, 250, (248, 249, 425, 426, 427, 321, 298, 323)),
    "aarch64": Machine(0xC00000B7, 198, 219, (217, 218, 425, 426, 427, 280, 241, 282)),
}


def filter_program(machine: str = platform.machine()) -> bytes | None:
    """The filter for bubblewrap's ``--seccomp``; None for a machine whose numbers are unknown.

    A refused call fails with EPERM, a socket of AF_VSOCK with EAFNOSUPPORT, a call of another
    interface (32 bits, x32) with ENOSYS.
    """
    known = MACHINES.get(machine)
    if known is None:
        return None
    refused = (known.keyctl, *known.refused)
    # The tail, to which the instructions before it jump.
    tail = [
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _AF_VSOCK),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
    ]
    allow, eperm, enosys, first_argument = range(4)
    checks = [(_EQUAL, number, eperm) for number in refused]
    checks.append((_EQUAL, known.socket, first_argument))
    length = 4 + len(checks)  # instructions before the tail
    program = [(_LOAD, 0, 0, _ARCHITECTURE)]
    program.append((_EQUAL, 0, length - 2 + enosys, known.architecture))
    program.append((_LOAD, 0, 0, _NUMBER))
    program.append((_AT_LEAST, length - 4 + enosys, 0, _X32))
    for at, (code, value, target) in enumerate(checks, start=5):
        last = at == length
        program.append((code, length - at + target, length - at + allow if last else 0, value))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program + tail)


def leave_keyring() -> None:
    """Join an empty session keyring; for a child before it becomes another program.

    Where that is forbidden, as in many containers, no keyring can be read either.
    """
    known = MACHINES.get(platform.machine())
    if known is not None:
        ctypes.CDLL(None).syscall(known.keyctl, _JOIN_SESSION_KEYRING, None)


def sealed_filter() -> int | None:
    """Descriptor of a file in memory with the filter; the caller closes it."""
    program = filter_program()
    if program is None:
        return None
    descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
