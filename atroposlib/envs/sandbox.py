"""Sandbox for programs that a model wrote: bubblewrap, limits, outcomes without verdicts.

    await ready("bubblewrap")                       # once, in setup: can it run here?
    outcome = await run(program, "1 2\\n")            # a program's text and its standard input
    outcome.ended is Ended.FINISHED and outcome.output == "3\\n"

Expected values and their comparison stay in the caller: an exit status, a marker line or an
assert inside the program can be forged. What is contained, and what is not: docs/cookbook.md.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import pwd
import random
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal
from weakref import WeakKeyDictionary

from pydantic import Field

from atroposlib.envs.syscall_filter import leave_keyring, sealed_filter
from atroposlib.errors import ConfigError

Kind = Literal["bubblewrap", "none"]
# For @environment(settings=...): the flag --env.sandbox.
ABOUT = "of programs that the model wrote; none: limits only, for a container of its own"
SETTINGS: dict[str, Any] = {"sandbox": (Kind, Field(default="bubblewrap", description=ABOUT))}
# Uids without an owner (systemd's dynamic users): a program never runs as root.
UNUSED_UIDS = range(61184, 65520)
SYSTEM_PATH = "/usr/bin:/usr/local/bin:/bin"  # readable for every user, unlike a home folder
REAP_WITHIN_S = 5.0  # limit after SIGKILL


class Ended(str, Enum):
    """How a program ended. No ending is a reward."""

    FINISHED = "finished"  # any exit status, also after an exception of the program
    TIMED_OUT = "timed out"  # wall clock or CPU time
    MEMORY = "out of memory"  # MemoryError
    KILLED = "killed"  # killed by a signal, for example at a stack overflow
    TOO_LONG = "output too long"  # stopped when its output passed the limit


@dataclass(frozen=True)
class Limits:
    """Bounds of a program; the bounds of memory, CPU time and files count for each process."""

    wall_s: float = 10.0
    cpu_s: int = 2
    memory_bytes: int = 1 << 30  # address space
    file_bytes: int = 50_000_000
    folder_bytes: int = 64 << 20  # each of /tmp and /dev/shm
    open_files: int = 64
    processes: int = 32  # threads count
    output_bytes: int = 1_000_000  # each of standard output and standard error


@dataclass(frozen=True)
class Execution:
    """Outcome of a program.

    Example: Execution(Ended.FINISHED, output="3\\n", errors="", status=0)
    """

    ended: Ended
    output: str
    errors: str  # standard error
    status: int | None  # 128 + number of the signal; None where the caller ended it


class _OutputTooLong(Exception):
    pass


# Sets the limits, which cannot be raised again, and becomes the program.
START = """\
import resource, sys
_, fd, limits = sys.argv
for name, limit in eval(limits).items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), limit)
with open(int(fd), encoding="utf-8") as file:
    code = compile(file.read(), "program.py", "exec")
sys.argv = ["program.py"]
exec(code, {"__name__": "__main__", "exit": sys.exit, "quit": sys.exit})
"""
# Follows a program whose function is called. What the program prints goes to standard error.
CALLS = """
import json as _json, sys as _sys
_results, _sys.stdout = _sys.stdout, _sys.stderr
for _line in _sys.stdin:
    print(_json.dumps({function}(*_json.loads(_line))), file=_results, flush=True)
"""


async def run(
    program: str, inputs: str = "", *, kind: Kind = "bubblewrap", limits: Limits = Limits()
) -> Execution:
    """Run the Python ``program`` with ``inputs`` as its standard input.

    As many programs run at once as there are cores; the wall clock of a waiting program has
    not started.

    Raises ConfigError: something is missing. OSError: the sandbox failed, not the program.
    """
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(os.cpu_count() or 1))
    async with slots:
        return await _run(program, inputs, kind, limits)


async def results_of(
    program: str,
    function: str,
    calls: Sequence[Sequence[Any]],
    *,
    kind: Kind = "bubblewrap",
    limits: Limits = Limits(),
) -> tuple[list[str], Execution]:
    """JSON text of the return value of the program's ``function`` for each list of arguments.

    Fewer than ``calls`` if it failed. Compare with :func:`json.dumps` of expected values.
    """
    inputs = "".join(json.dumps(call) + "\n" for call in calls)
    whole = program + CALLS.format(function=function)
    outcome = await run(whole, inputs, kind=kind, limits=limits)
    return outcome.output.splitlines(), outcome


async def ready(kind: Kind) -> None:
    """Run a program; raises ConfigError: names the missing or forbidden part."""
    try:
        outcome = await run("print(6 * 7)", kind=kind)
    except OSError as error:
        raise ConfigError(
            f"bubblewrap cannot start a program here: {error}. It needs version 0.8 and user "
            "namespaces; --env.sandbox none does without, in a container of its own"
        ) from error
    if outcome.output != "42\n":
        raise ConfigError(f"python3 does not run in the sandbox: {outcome}")


def arguments(
    kind: Kind, limits: Limits, program_fd: int, status_fd: int, filter_fd: int | None = None
) -> list[str]:
    """Command line of a program; raises ConfigError: Python or bubblewrap is missing."""
    python = shutil.which("python3", path=SYSTEM_PATH)
    bwrap = shutil.which("bwrap", path=SYSTEM_PATH)
    if python is None:
        raise ConfigError(f"the sandbox needs a python3 of the system, in {SYSTEM_PATH}")
    bounds = {
        "AS": (limits.memory_bytes,) * 2,
        "CPU": (limits.cpu_s, limits.cpu_s + 1),  # a signal, then SIGKILL
        "FSIZE": (limits.file_bytes,) * 2,
        "NOFILE": (limits.open_files,) * 2,
        "CORE": (0, 0),
    }
    if kind == "bubblewrap":  # elsewhere all processes of the user would count
        bounds["NPROC"] = (limits.processes,) * 2
    started = [python, "-I", "-S", "-B", "-c", START, str(program_fd), repr(bounds)]
    if kind == "none":
        return started
    if bwrap is None:
        raise ConfigError(
            "programs of the model run in bubblewrap, which is missing: apt install bubblewrap "
            "(the package of your distribution), or --env.sandbox none in a container of its own"
        )
    size, folders = str(limits.folder_bytes), []
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        linked = os.path.islink(path)
        folders += ["--symlink", os.readlink(path)] if linked else ["--ro-bind-try", path]
        folders.append(path)
    if filter_fd is not None:
        folders += ["--seccomp", str(filter_fd)]
    return [
        bwrap, "--json-status-fd", str(status_fd), "--die-with-parent", "--new-session",
        "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL",
        "--clearenv", "--hostname", "sandbox",
        "--ro-bind", "/usr", "/usr",
        "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", *folders,
        "--proc", "/proc", "--dev", "/dev",
        "--size", size, "--tmpfs", "/dev/shm",
        "--size", size, "--tmpfs", "/tmp",
        "--remount-ro", "/dev", "--remount-ro", "/",
        "--chdir", "/tmp", *started,
    ]  # fmt: skip


def how_it_ended(status: int, errors: str) -> Ended:
    """Ending of a program that exited on its own, from its exit status and its errors."""
    if status == 128 + signal.SIGXCPU:
        return Ended.TIMED_OUT
    if 128 < status <= 128 + signal.NSIG:
        return Ended.KILLED
    last = errors.rstrip().rpartition("\n")[2]
    return Ended.MEMORY if status and last.startswith("MemoryError") else Ended.FINISHED


def _user() -> dict[str, Any]:
    """As root an unused uid, because root ignores the limit of processes."""
    if os.geteuid() != 0:
        return {}
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    uid = next(candidate for candidate in _uids if candidate not in taken)
    return {"user": uid, "group": uid, "extra_groups": []}


def _seal(text: str) -> int:
    """Descriptor of a file in memory that holds ``text`` and cannot be changed."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, text.encode("utf-8", "replace"))
    os.lseek(fd, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


async def _run(program: str, inputs: str, kind: Kind, limits: Limits) -> Execution:
    with ExitStack() as stack:
        status_fd = os.memfd_create("status", os.MFD_CLOEXEC)  # status of bubblewrap
        program_fd, inputs_fd = _seal(program), _seal(inputs)
        filter_fd = sealed_filter() if kind == "bubblewrap" else None
        passed = [fd for fd in (program_fd, status_fd, filter_fd) if fd is not None]
        for fd in (*passed, inputs_fd):
            stack.callback(os.close, fd)
        process = await asyncio.create_subprocess_exec(
            *arguments(kind, limits, program_fd, status_fd, filter_fd),
            stdin=inputs_fd,
            stdout=PIPE,
            stderr=PIPE,
            pass_fds=passed,
            preexec_fn=leave_keyring,
            env={"HOME": "/tmp", "PATH": SYSTEM_PATH},
            cwd="/",
            start_new_session=True,
            **_user(),
        )
        read = [bytearray(), bytearray()]
        stopped: Ended | None = None
        reading = _read(process, read, limits.output_bytes)
        try:
            await asyncio.wait_for(reading, limits.wall_s)
        except asyncio.TimeoutError:
            stopped = Ended.TIMED_OUT
        except _OutputTooLong:
            stopped = Ended.TOO_LONG
        finally:
            await _end(process)
        output, errors = (output.decode("utf-8", "replace") for output in read)
        if stopped is not None:
            return Execution(stopped, output, errors, None)
        code = process.returncode or 0
        if kind == "bubblewrap" and b"exit-code" not in os.pread(status_fd, 4096, 0):
            raise OSError(errors.strip() or f"bwrap ended with status {code}")
        code = 128 - code if code < 0 else code
        return Execution(how_it_ended(code, errors), output, errors, code)


async def _read(process: Process, into: Sequence[bytearray], most_bytes: int) -> None:
    """Read both streams to their ends; raises _OutputTooLong."""

    async def read(stream: Any, read_bytes: bytearray) -> None:
        while chunk := await stream.read(1 << 16):
            read_bytes += chunk[: most_bytes - len(read_bytes)]
            if len(read_bytes) >= most_bytes:
                raise _OutputTooLong

    streams = zip((process.stdout, process.stderr), into)
    tasks = [asyncio.ensure_future(read(*pair)) for pair in streams]
    try:
        await asyncio.gather(*tasks)
        await process.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _end(process: Process) -> None:
    """Kill what still runs. With bubblewrap all processes of the program end with it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    # Unread output keeps the pipes open; without bubblewrap a child may hold the pipes.
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.communicate(), REAP_WITHIN_S)


_uids = itertools.cycle(random.sample(UNUSED_UIDS, len(UNUSED_UIDS)))
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
