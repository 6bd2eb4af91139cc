"""Child processes of a run: start, readiness, end. Only these processes are signalled.

Every child leads a separate session: a Ctrl-C in the terminal reaches only the launcher,
and a signal to the child's process group ends it together with its own children.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from atroposlib.errors import AtroposError
from atroposlib.processes import watchdog
from atroposlib.processes.log_files import keep_small
from atroposlib.text.lines import LOG_STARTED, since_last_start
from atroposlib.utils.command.signals import on_signals

POLL_S = 0.1
PROBE_TIMEOUT_S = 2.0
LOG_TAIL_LINES = 12


class RunFailed(AtroposError):
    """The run cannot go on. ``line`` is the message to show, ``tail`` the end of the log."""

    def __init__(self, line: str, tail: str = "") -> None:
        super().__init__(line)
        self.line = line
        self.tail = tail


class Interrupted(AtroposError):
    """A stop was requested: Ctrl-C, SIGTERM or a closed terminal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


@dataclass(frozen=True)
class ProcessSpec:
    """A process: its command, its readiness probe, whether it may be restarted."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]  # added to the launcher's environment
    cwd: Path
    health_url: str | None = None
    ready_within_s: float = 120.0
    restartable: bool = False

    def shell_line(self) -> str:
        """Return the command in POSIX shell syntax."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in sorted(self.env.items())]
        words = [*settings, *map(shlex.quote, self.argv)]
        return f"cd {shlex.quote(str(self.cwd))} && {' '.join(words)}"


@dataclass(frozen=True)
class Exit:
    """Exit status of a process as in ``subprocess``: an exit code, or minus a signal."""

    returncode: int

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"exit code {self.returncode}"
        try:
            return f"signal {signal.Signals(-self.returncode).name}"
        except ValueError:
            return f"signal {-self.returncode}"


@dataclass
class Child:
    """A started process and its log file."""

    spec: ProcessSpec
    popen: subprocess.Popen[bytes]
    log: Path

    def exit(self) -> Exit | None:
        code = self.popen.poll()
        return None if code is None else Exit(code)

    def failure(self, line: str) -> RunFailed:
        """Return the error that ends the run, with the end of this log."""
        return RunFailed(line, log_tail(self.log))


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Last lines of a log since its last start, without lines that a progress bar overwrote."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 32_768))
            text = stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    here = since_last_start(text).splitlines()
    kept = [line.rsplit("\r", 1)[-1].rstrip() for line in here]
    return "\n".join([line for line in kept if line][-lines:])


@dataclass
class StopRequest:
    """Stop flag set by a signal handler. Loops read it, so no start is interrupted midway."""

    signal_number: int | None = None
    count: int = 0

    def listen(self) -> None:
        on_signals(self._note, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def _note(self, number: int) -> None:
        self.signal_number = number
        self.count += 1

    def check(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


class Children:
    """All processes of a run. Use as a context manager: leaving it ends all processes."""

    def __init__(self, logs: Path, stop: StopRequest | None = None) -> None:
        self._logs = logs
        self._stop = stop or StopRequest()
        self._children: dict[str, Child] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.end(list(self._children))
        if self._watchdog is not None:
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
            self._watchdog.wait()

    def start(self, spec: ProcessSpec) -> Child:
        """Start a process; its output is appended to ``<logs>/<name>.log``, after a first line."""
        log = self._logs / f"{spec.name}.log"
        with log.open("ab") as output:
            # Lines above it are of an earlier start, and no evidence about this start.
            output.write(f"{LOG_STARTED}{time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            output.flush()
            try:
                popen = subprocess.Popen(
                    spec.argv,
                    cwd=spec.cwd,
                    env={**os.environ, **spec.env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise RunFailed(
                    f"{spec.name}: cannot start {spec.argv[0]}: {error}"
                ) from error
        self._notify_watchdog(f"+{popen.pid}")
        child = Child(spec, popen, log)
        self._children[spec.name] = child
        return child

    def keep_logs_small(self) -> None:
        """Bound the logs of all children, which write on meanwhile."""
        for child in self._children.values():
            keep_small(child.log)

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def run_to_end(self, spec: ProcessSpec, *, bound_s: float) -> Exit:
        """Run a short task to its end. Raises RunFailed when it takes too long."""
        child = self.start(spec)
        deadline = time.monotonic() + bound_s
        while (ended := child.exit()) is None:
            self._stop.check()
            if time.monotonic() > deadline:
                self.end([spec.name])
                raise child.failure(f"{spec.name}: not done after {bound_s:.0f} s")
            time.sleep(POLL_S)
        self.end([spec.name])
        return ended

    def wait_ready(
        self,
        names: Iterable[str],
        on_wait: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Wait until the health URL of every named child answers; the bound is its spec's.

        Raises RunFailed: a child ended first, or its bound passed; the message names it.
        """
        started = time.monotonic()
        for child in [self._children[name] for name in names]:
            name, url = child.spec.name, child.spec.health_url
            bound_s = child.spec.ready_within_s
            while url is not None and not answers(url):
                self._stop.check()
                waited_s = time.monotonic() - started
                if (ended := child.exit()) is not None:
                    line = f"{name} ended before it was ready ({ended})"
                    raise child.failure(f"{line}; log: {child.log}")
                if waited_s > bound_s:
                    line = f"{name} did not answer at {url} within {bound_s:.0f} s"
                    raise child.failure(f"{line}; log: {child.log}")
                on_wait(f"waiting for {name}: {waited_s:.0f} of {bound_s:.0f} s")
                time.sleep(POLL_S)

    def end(self, names: list[str], grace_s: float = 5.0) -> None:
        """End the named children: SIGTERM, then SIGKILL after ``grace_s`` or a second Ctrl-C."""
        chosen = [self._children[name] for name in names if name in self._children]
        signals_before = self._stop.count
        for child in reversed(chosen):
            if child.exit() is None:
                watchdog.signal_group(child.popen.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(child.exit() is None for child in chosen):
            if time.monotonic() > deadline or self._stop.count > signals_before:
                break
            time.sleep(POLL_S)
        for child in chosen:
            # Also after a clean exit: the leader may have left children behind.
            watchdog.signal_group(child.popen.pid, signal.SIGKILL)
            child.popen.wait()
            self._notify_watchdog(f"-{child.popen.pid}")
            del self._children[child.spec.name]

    def _notify_watchdog(self, line: str) -> None:
        if self._watchdog is None or self._watchdog.stdin is None:
            return
        try:
            self._watchdog.stdin.write(line.encode() + b"\n")
            self._watchdog.stdin.flush()
        except BrokenPipeError:
            pass  # the watchdog was killed: this process still ends its children


def answers(url: str) -> bool:
    """Whether a GET of a ``http://host:port/path`` succeeds; proxy settings are ignored."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=PROBE_TIMEOUT_S):
            return True
    except (OSError, HTTPException):  # an error status is an OSError too
        return False


def free_port() -> int:
    """Return a TCP port on the loopback interface that is unused at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
