"""The sandbox of programs that a model wrote: a table of attacks, and typed outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from atroposlib.envs import sandbox
from atroposlib.envs.sandbox import Ended, Limits, how_it_ended, ready, results_of, run
from atroposlib.errors import ConfigError

USER = 65534  # as whom the attacks run a second time where the tests run as root
LIMITS = Limits(wall_s=8, cpu_s=1, output_bytes=100_000)
MARKER = "atropos-sandbox-marker"


def why_not() -> str:
    """Reason why no program can run here; empty where it can."""
    if shutil.which("bwrap", path=sandbox.SYSTEM_PATH) is None:
        return "bubblewrap is not installed"
    try:
        asyncio.run(ready("bubblewrap"))
    except ConfigError as error:
        return str(error)
    return ""


needs_bubblewrap = pytest.mark.skipif(bool(WHY := why_not()), reason=WHY or "available")

# Every program prints ESCAPED where it succeeds. {names} are those of `world`.
C_CALL = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
ATTACKS = {
    "read a secret file of the host": "print(open('{secret}').read(), 'ESCAPED')",
    "read /etc/passwd": "print(open('/etc/passwd').read(), 'ESCAPED')",
    "read /etc/shadow": "print(open('/etc/shadow').read(), 'ESCAPED')",
    "list the home folders": "import os; print(os.listdir('{home}'), 'ESCAPED')",
    "write into /usr": "open('/usr/lib/x', 'w'); print('ESCAPED')",
    "write into a folder of the host": "open('{folder}/x', 'w'); print('ESCAPED')",
    "write into the root folder": "open('/x', 'w'); print('ESCAPED')",
    "write into /dev": "open('/dev/x', 'w'); print('ESCAPED')",
    "connect to a loopback server": (
        "import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')"
    ),
    "send a packet to the internet": (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', ('8.8.8.8', 53)); print('ESCAPED')"
    ),
    "connect to a Unix socket": (
        "import socket; socket.socket(socket.AF_UNIX).connect('{folder}/s'); print('ESCAPED')"
    ),
    "connect to an abstract Unix socket": (
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0{abstract}'); print('ESCAPED')"
    ),
    "read a secret of the environment": (
        "import os; print('ESCAPED' if 'SANDBOX_SECRET' in os.environ else '')"
    ),
    "read the environment of every process": (
        "import glob\nfor one in glob.glob('/proc/[0-9]*/environ'):\n"
        "  if b'SANDBOX_SECRET' in open(one, 'rb').read(): print('ESCAPED')"
    ),
    "see processes of the host": (
        "import os; n = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "print('ESCAPED' if len(n) > 3 else '')"
    ),
    "kill processes of the host": (
        "import os, signal; os.kill({pid}, signal.SIGKILL); print('ESCAPED')"
    ),
    "inherit descriptors": (
        "import os; n = [f for f in os.listdir('/proc/self/fd') if int(f) > 3]\n"
        "print('ESCAPED' if n else '')"
    ),
    "fork bomb": (
        "import os, time\nfor i in range(200):\n"
        "  if os.fork() == 0: time.sleep(60)\nprint('ESCAPED')"
    ),
    "thread bomb": (
        "import threading, time\nfor i in range(200):\n"
        "  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('ESCAPED')"
    ),
    "three gigabytes of memory": "x = bytearray(3_000_000_000); print('ESCAPED')",
    "raise the own limits": (
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40)); print('ESCAPED')"
    ),
    "fill /tmp": (
        "for i in range(9): open(str(i), 'wb').write(bytes(10_000_000))\nprint('ESCAPED')"
    ),
    "fill /dev/shm": (
        "for i in range(9): open(f'/dev/shm/{i}', 'wb').write(bytes(10_000_000))\n"
        "print('ESCAPED')"
    ),
    "write one large file": (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "f = open('x', 'wb')\nfor i in range(6): f.write(bytes(10_000_000))\n"
        "f.close(); print('ESCAPED')"
    ),
    "open many files": "f = [open('/dev/null') for i in range(99)]; print('ESCAPED')",
    "mount a file system": (
        C_CALL + "print('' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) else 'ESCAPED')"
    ),
    "make a user namespace": C_CALL + "print('' if libc.unshare(0x10000000) else 'ESCAPED')",
    "trace a process of the host": (
        C_CALL + "print('' if libc.ptrace(16, {pid}, 0, 0) else 'ESCAPED')"
    ),
    "become root": "import os; os.setuid({other_uid}); print('ESCAPED')",
    "leave by chroot": "import os; os.chroot('/tmp'); print('ESCAPED')",
    "make a device": "import os; os.mknod('x', 0o20666, os.makedev(1, 1)); print('ESCAPED')",
    "write a setting of the kernel": (
        "open('/proc/sys/kernel/hostname', 'w').write('x'); print('ESCAPED')"
    ),
    "take a higher priority": "import os; os.nice(-5); print('ESCAPED')",
    "type into the terminal": (
        "import fcntl; fcntl.ioctl(open('/dev/tty'), 0x5412, b'x'); print('ESCAPED')"
    ),
    "change the inputs": "import os; os.write(0, b'x'); print('ESCAPED')",
    "a child that outlives its parent": (
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n"
        "  os.execv('/usr/bin/python3', ['{marker}', '-c', 'import time; time.sleep(600)'])"
    ),
}
# Attacks that the parent or a signal ends, with the outcome.
ENDLESS = {
    "endless loop": ("while True: pass", {Ended.TIMED_OUT}),
    "endless loop that ignores signals": (
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        {Ended.KILLED, Ended.TIMED_OUT},
    ),
    "flood of output": ("while True: print('x' * 9999)", {Ended.TOO_LONG}),
    "flood of errors": (
        "import sys\nwhile True: sys.stderr.write('x' * 9999)",
        {Ended.TOO_LONG},
    ),
    "stop the first process of the own sandbox": (
        C_CALL + "libc.ptrace(16, 1, 0, 0)",
        {Ended.TIMED_OUT},
    ),
    "access to address zero": (
        "import ctypes; ctypes.string_at(0)",
        {Ended.KILLED},
    ),
    "memory in small pieces": (
        "x = []\nwhile True: x.append(bytes(10_000_000))",
        {Ended.MEMORY},
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Things of the host that an attack is after, open to every user."""
    folder = tmp_path_factory.mktemp("host")
    for above in (folder, *folder.parents[:2]):
        with contextlib.suppress(PermissionError):
            above.chmod(0o777)
    secret = folder / "secret"
    secret.write_text("SANDBOX_SECRET")
    abstract = f"{MARKER}-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in (f"{folder}/s", f"\0{abstract}"):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen()
        victim = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(victim.kill)
        yield {
            "secret": secret,
            "folder": folder,
            "port": server.getsockname()[1],
            "abstract": abstract,
            "home": Path.home(),
            "pid": victim.pid,
            "victim": victim,
        }


async def all_attacks(world):
    """Execution of every attack by name."""
    programs = {name: program for name, (program, _) in ENDLESS.items()}
    known = {k: str(v) for k, v in world.items()}
    known |= {"marker": MARKER, "other_uid": "0" if os.geteuid() else "1"}
    for name, program in ATTACKS.items():
        for key, value in known.items():
            program = program.replace("{" + key + "}", value)
        programs[name] = program
    outcomes = await asyncio.gather(*(run(one, limits=LIMITS) for one in programs.values()))
    return dict(zip(programs, outcomes))


def as_user(world):
    """The attacks in a child of this process that is not root any more."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            with open(writer, "wb") as file:
                pickle.dump(asyncio.run(all_attacks(world)), file)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        found = pickle.load(file)
    os.waitpid(child, 0)
    return found


@pytest.fixture(scope="module", params=["root", "user"])
def outcomes(request, world):
    """Outcomes of all attacks, by programs that root or another user starts."""
    if WHY:
        pytest.skip(WHY)
    os.environ["SANDBOX_SECRET"] = "SANDBOX_SECRET"
    try:
        if request.param == "root" and os.geteuid() != 0:
            pytest.skip("the tests do not run as root")
        if request.param == "user" and os.geteuid() == 0:
            return as_user(world)
        return asyncio.run(all_attacks(world))
    finally:
        del os.environ["SANDBOX_SECRET"]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_contained(outcomes, world, name):
    outcome = outcomes[name]
    assert "ESCAPED" not in outcome.output and "SANDBOX_SECRET" not in outcome.output, outcome
    assert world["victim"].poll() is None
    assert not (world["folder"] / "x").exists()


@pytest.mark.parametrize("name", ENDLESS)
def test_a_program_without_an_end_has_a_typed_outcome(outcomes, name):
    assert outcomes[name].ended in ENDLESS[name][1], outcomes[name]


def test_no_process_of_a_program_is_left(outcomes):
    assert outcomes and not left_over()


def left_over():
    """Processes of the host whose command begins with MARKER."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return [line for line in lines if line.startswith(MARKER.encode())]


@needs_bubblewrap
async def test_a_program_reads_inputs_and_writes_outputs():
    outcome = await run("print(sum(map(int, open(0).read().split())))\nexit(3)", "1 2\n3")
    assert (outcome.ended, outcome.output, outcome.status) == (Ended.FINISHED, "6\n", 3)


@needs_bubblewrap
async def test_the_results_of_a_function_are_json_and_its_prints_are_not():
    program = "def pair(a, b):\n    print('noise')\n    return [b, a]"
    results, outcome = await results_of(program, "pair", [(1, 2), ("x", None)])
    assert results == ["[2, 1]", '[null, "x"]']
    assert "noise" in outcome.errors


@needs_bubblewrap
async def test_a_function_that_fails_has_the_results_before_it():
    results, _ = await results_of("def f(x):\n    return 1 / x", "f", [(1,), (0,), (2,)])
    assert results == ["1.0"]


@needs_bubblewrap
async def test_a_sleeping_program_is_stopped_by_the_wall_clock():
    outcome = await run("import time; time.sleep(60)", limits=Limits(wall_s=0.3))
    assert (outcome.ended, outcome.status) == (Ended.TIMED_OUT, None)


@needs_bubblewrap
async def test_a_cancelled_run_leaves_no_process():
    program = f"import os; os.execv('/bin/sleep', ['{MARKER}', '600'])"
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(run(program), 0.5)
    assert not left_over()


async def test_without_bubblewrap_the_error_names_the_package(monkeypatch):
    monkeypatch.setattr(
        sandbox.shutil,
        "which",
        lambda name, path: "/usr/bin/python3" if "py" in name else None,
    )
    with pytest.raises(ConfigError, match="apt install bubblewrap.*--env.sandbox none"):
        await ready("bubblewrap")


@pytest.mark.skipif(
    shutil.which("python3", path=sandbox.SYSTEM_PATH) is None,
    reason="no python3 of the system",
)
async def test_none_keeps_the_limits_and_never_runs_as_root():
    outcome = await run("import os; print(os.getuid()); x = bytes(3_000_000_000)", kind="none")
    assert outcome.ended is Ended.MEMORY
    assert outcome.output != "0\n"


@pytest.mark.parametrize(
    "status, errors, ended",
    [
        (0, "", Ended.FINISHED),
        (1, "Traceback\nValueError: x\n", Ended.FINISHED),
        (1, "Traceback\nMemoryError\n", Ended.MEMORY),
        (0, "MemoryError", Ended.FINISHED),
        (137, "", Ended.KILLED),
        (152, "", Ended.TIMED_OUT),
    ],
)
def test_an_exit_status_becomes_an_outcome(status, errors, ended):
    assert how_it_ended(status, errors) is ended
