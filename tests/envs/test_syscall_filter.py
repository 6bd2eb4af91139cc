"""The filter of system calls: every number on every machine, and real programs."""

from __future__ import annotations

import ctypes
import errno
import platform
import shutil
import struct

import pytest

from atroposlib.envs.sandbox import SYSTEM_PATH, run
from atroposlib.envs.syscall_filter import MACHINES, filter_program

ALLOWED = 0x7FFF0000


def decision(program, number, architecture, argument=0):
    """What the kernel decides for a call: the interpreter of classic BPF, as far as it is used."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, argument, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, k = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code in (0x15, 0x35):
            holds = accumulator == k if code == 0x15 else accumulator >= k
            at += if_true if holds else if_false
        else:
            assert code == 0x06
            return k


def failing_with(number):
    return 0x00050000 | number


@pytest.mark.parametrize("name", MACHINES)
def test_only_the_listed_calls_are_refused(name):
    machine, program = MACHINES[name], filter_program(name)
    refused = {machine.keyctl, *machine.refused}
    assert len(refused) == 9
    for number in range(600):
        expected = failing_with(errno.EPERM) if number in refused else ALLOWED
        assert decision(program, number, machine.architecture) == expected, number


@pytest.mark.parametrize("name", MACHINES)
def test_sockets_of_the_hypervisor_alone_are_refused(name):
    machine, program = MACHINES[name], filter_program(name)
    for family in range(50):
        expected = failing_with(errno.EAFNOSUPPORT) if family == 40 else ALLOWED
        assert decision(program, machine.socket, machine.architecture, family) == expected


@pytest.mark.parametrize("name", MACHINES)
def test_calls_by_other_interfaces_are_refused(name):
    machine, program = MACHINES[name], filter_program(name)
    absent = failing_with(errno.ENOSYS)
    assert decision(program, 0, 0x40000003) == absent  # i386
    assert decision(program, 0, 0) == absent
    for number in (0x40000000, 0x40000000 + machine.keyctl, 2**31 - 1, -1):
        assert decision(program, number, machine.architecture) == absent


def test_a_machine_whose_numbers_are_unknown_has_no_filter():
    assert filter_program("riscv64") is None


needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap", path=SYSTEM_PATH) is None or platform.machine() not in MACHINES,
    reason="bubblewrap is not installed, or the machine has no filter",
)
CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno())
"""


@needs_bubblewrap
async def test_a_program_cannot_make_a_refused_call():
    machine = MACHINES[platform.machine()]
    for number in (machine.keyctl, *machine.refused):
        outcome = await run(CALL.format(number=number))
        assert outcome.output == f"-1 {errno.EPERM}\n", (number, outcome)
    outcome = await run("import socket\nsocket.socket(40, 1)")
    assert f"[Errno {errno.EAFNOSUPPORT}]" in outcome.errors


@needs_bubblewrap
async def test_a_program_has_an_empty_session_keyring_of_its_own():
    libc, machine = ctypes.CDLL(None, use_errno=True), MACHINES[platform.machine()]
    if libc.syscall(machine.keyctl, 1, None) < 0:
        pytest.skip("keyrings are forbidden here")
    added = libc.syscall(machine.refused[0], b"user", b"of-the-test", b"secret", 6, -3)
    assert added > 0
    outcome = await run("print(open('/proc/keys').read())")
    assert "of-the-test" not in outcome.output
