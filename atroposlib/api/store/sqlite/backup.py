"""Copy of a data directory whose API runs, and a data directory made of a copy.

    index of rollouts -> snapshot of the rows -> open segments -> bytes up to their ends -> manifest

A group is acknowledged after its bytes and then its row are durable, and bytes that a row names
never change. So a snapshot of the rows with the bytes that it names is the queue at a point of time. A
segment that is freed meanwhile stays readable through its open file. The index comes first, because
an API fills in what its index lacks, and does not expect rows of groups that it never had.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import apsw
import msgspec

from atroposlib.api.common.records import digest_of
from atroposlib.api.decisions.run_state import run_of
from atroposlib.api.store.sql.run import LoadRun, Renew, SaveRun
from atroposlib.api.store.sql.schema import Connection, read_meta, stats
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.api.store.sqlite.database import BUSY_MS, SqliteConnection
from atroposlib.api.store.sqlite.opening import LAYOUT
from atroposlib.api.store.sqlite.payload_log import segment_ends
from atroposlib.api.store.sqlite.segment_files import SegmentFiles
from atroposlib.errors import ConfigError
from atroposlib.utils.io import sync_path, whole_file

FORMAT = 1
MANIFEST = "backup.json"  # written last, so it marks a whole backup
ARCHIVE = "archive"
CHUNK_BYTES = 4 * 2**20
SNAPSHOTS = 5  # tries: a segment may be freed between a snapshot and its opening
SPARE_FILES = 64
ENV_IDS_APART = 10_000  # more than the environments that joined since the backup

Copied = Callable[[str, int], object]  # name and bytes of a file that is copied


class FileFact(msgspec.Struct, frozen=True):
    """Size and digest (blake2b) of a file of a backup."""

    n_bytes: int
    digest: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a backup. Its figures belong to the snapshot."""

    format: int = FORMAT
    layout: int = LAYOUT
    taken: float  # s since the epoch
    run_id: str
    groups: int  # queued, in batches, or buffered
    last_group: int
    last_batch: int
    policy_version: int
    damaged: int  # groups whose bytes were damaged in the original too
    files: dict[str, FileFact]

    @property
    def n_bytes(self) -> int:
        return sum(fact.n_bytes for fact in self.files.values())


# --- backup -----------------------------------------------------------------------------


def back_up(data_dir: Path, target: Path, copied: Copied = lambda name, n: None) -> Manifest:
    """Copy the data directory to the folder ``target``, also while its API writes.

    Raises:
        ConfigError: ``data_dir`` has no queue of this layout, or ``target`` is not empty.
        OSError, apsw.Error: a disk fails or is full. Without its manifest ``target`` is no backup.
    """
    if not (data_dir / DATABASE).is_file():
        raise ConfigError(f"{data_dir} is no data directory: it has no {DATABASE}")
    names = [*begin_backup(data_dir / ARCHIVE, target), DATABASE]
    taken = time.time()
    with ExitStack() as opened:
        segments = _snapshot(data_dir, target, opened)
        facts = {name: fact_of(target / name) for name in names}
        for name, (source, end) in segments.items():
            copied(name, end)
            facts[name] = _copy(source, target / name, end)
    return write_manifest(target, taken, facts)


def begin_backup(indexes: Path | None, target: Path) -> list[str]:
    """Make the folder ``target``, with the indexes of rollouts of a folder; their names.

    Raises:
        ConfigError: ``target`` is not empty.
    """
    _require_empty(target, "the backup")
    (target / ARCHIVE).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(target, 0o700)
    paths = sorted(indexes.glob("index*.sqlite")) if indexes is not None else []
    for path in paths:
        _copy_database(path, target / ARCHIVE / path.name)
    return [f"{ARCHIVE}/{path.name}" for path in paths]


def write_manifest(target: Path, taken: float, facts: dict[str, FileFact]) -> Manifest:
    """Read the rows and payloads of the copy, and mark it as a whole backup."""
    with closing(_connection(target / DATABASE, apsw.SQLITE_OPEN_READONLY)) as raw:
        connection = SqliteConnection(raw)
        run, meta = run_of(LoadRun()(connection)), read_meta(connection)
        manifest = Manifest(
            taken=taken,
            run_id=run.run_id,
            groups=stats(connection).groups_held,
            last_group=meta.last_gid,
            last_batch=meta.last_batch,
            policy_version=run.policy_version,
            damaged=sum(1 for _ in damaged_groups(connection, target)),
            files=facts,
        )
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    with whole_file(target / MANIFEST) as draft:
        draft.write_bytes(body)
        sync_path(draft)
    for folder in (target / ARCHIVE, target):
        sync_path(folder)
    return manifest


def _snapshot(
    data_dir: Path, target: Path, opened: ExitStack
) -> dict[str, tuple[BinaryIO, int]]:
    """Copy the rows; the open files of the segments that they name, with their ends.

    A segment that two snapshots name and that is absent is lost, not freed: the copy has its
    groups as damaged groups, like the original.
    """
    files, lost = SegmentFiles(data_dir), set[int]()
    for _ in range(SNAPSHOTS):
        _copy_database(data_dir / DATABASE, target / DATABASE)
        with closing(_connection(target / DATABASE, apsw.SQLITE_OPEN_READONLY)) as raw:
            _require_layout(raw, data_dir)
            ends = {no: end for no, end in segment_ends(SqliteConnection(raw)).items() if end}
        _allow_open_files(len(ends))
        absent, segments = set[int](), dict[str, tuple[BinaryIO, int]]()
        with ExitStack() as attempt:
            for no, end in sorted(ends.items()):
                path = files.path(no)
                try:
                    segments[path.name] = attempt.enter_context(open(path, "rb")), end
                except FileNotFoundError:
                    absent.add(no)
            if absent <= lost:
                opened.push(attempt.pop_all())
                return segments
        lost = absent
    raise ConfigError(
        f"{data_dir} frees its segments faster than they can be opened: try again"
    )


def _copy_database(source: Path, copy: Path) -> None:
    """A snapshot of a database in use, as a single file without a log."""
    copy.unlink(missing_ok=True)
    os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600))
    flags = apsw.SQLITE_OPEN_READWRITE
    with (
        closing(_connection(source, apsw.SQLITE_OPEN_READONLY)) as raw,
        closing(_connection(copy, flags)) as target,
    ):
        # In a stopped directory this is the last connection, and must leave its log alone.
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        with target.backup("main", raw, "main") as pages:
            pages.step()  # all in a read transaction, during which the API writes on
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
        # The copy is whole without a log; see ``opening`` for the mark.
        target.execute("PRAGMA application_id = 0")
    sync_path(copy)


def _connection(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(BUSY_MS)
    return connection


def _require_layout(raw: apsw.Connection, data_dir: Path) -> None:
    [(layout,)] = raw.execute("PRAGMA user_version").fetchall()
    if layout != LAYOUT:
        raise ConfigError(
            f"{data_dir} has layout {layout}, this release knows {LAYOUT}: start its API once "
            "with this release, which rewrites it, or back it up with the release that wrote it"
        )


def _allow_open_files(n_files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n_files + SPARE_FILES
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(f"{n_files} segments have to be open at once: ulimit -n {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def damaged_groups(connection: SqliteConnection, folder: Path) -> Iterator[int]:
    """The groups of ``folder`` whose bytes do not match their digests."""
    files = SegmentFiles(folder)
    for table in ("payload", "archived"):
        digest = "groups.digest" if table == "payload" else "archived.digest"
        joined = " JOIN groups USING (gid)" if table == "payload" else ""
        sql = f"SELECT gid, segment, start, {table}.n_bytes, {digest} FROM {table}{joined}"
        # Row by row: an archive has more rows than fit into memory.
        for gid, no, start, n_bytes, expected in connection.raw.execute(sql):
            try:
                [body] = files.read(no, [(start, n_bytes)])
            except (OSError, OverflowError, TypeError):
                body = b""
            if digest_of(body) != expected:
                yield gid


# --- restore ----------------------------------------------------------------------------


def read_manifest(backup: Path) -> Manifest:
    """The manifest of a whole backup.

    Raises:
        ConfigError: the backup did not end, or another release wrote it.
    """
    try:
        manifest = msgspec.json.decode((backup / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{backup} has no {MANIFEST}: it is no backup, or the backup did not end"
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{backup / MANIFEST} cannot be read: {error}") from error
    if (manifest.format, manifest.layout) != (FORMAT, LAYOUT):
        raise ConfigError(
            f"{backup} has format {manifest.format} and layout {manifest.layout}, this release "
            f"knows {FORMAT} and {LAYOUT}: restore it with the release that wrote it, and start "
            "its API once with this release, which rewrites the directory"
        )
    return manifest


def restore(backup: Path, data_dir: Path, copied: Copied = lambda name, n: None) -> Manifest:
    """Make the data directory ``data_dir`` of a backup, whose queue is then a separate queue.

    Trainers of the original are refused by it (``Renew``). Environments of the original go on under
    their ids, and the ids that the original gave out since are not given out again.

    Raises:
        ConfigError: ``data_dir`` is not empty, or a file of the backup is not as it was written.
    """
    manifest = read_manifest(backup)
    _require_empty(data_dir, "the data directory")
    draft = data_dir.with_name(f"{data_dir.name}.restoring-{os.getpid()}")
    with _removed_on_error(draft):
        (draft / ARCHIVE).mkdir(mode=0o700, parents=True)
        os.chmod(draft, 0o700)
        require_sound(backup, manifest, copied, draft)
        path = draft / DATABASE
        with closing(_connection(path, apsw.SQLITE_OPEN_READWRITE)) as raw, raw:
            renew(SqliteConnection(raw), time.time())
        sync_path(path)
        sync_path(draft)
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(data_dir)  # over an empty folder too
        sync_path(data_dir.parent)
    return manifest


def require_sound(
    backup: Path, manifest: Manifest, copied: Copied, target: Path | None = None
) -> None:
    """Read all files of the backup, and copy all to the folder ``target`` if it is given.

    Raises:
        ConfigError: a file is absent, or not as it was written.
    """
    for name, fact in manifest.files.items():
        copied(name, fact.n_bytes)
        _require_inside(backup, name)
        try:
            with open(backup / name, "rb") as source:
                found = _copy(source, target and target / name, None)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{backup / name} is missing, {_fact_text(fact)} were written. Nothing was restored:"
                " copy the file again, or take an earlier backup"
            ) from error
        if found != fact:
            raise ConfigError(
                f"{backup / name} is damaged: {_fact_text(found)}, {_fact_text(fact)} were written."
                " Nothing was restored: copy the file again, or take an earlier backup"
            )


def _fact_text(fact: FileFact) -> str:
    return f"{fact.n_bytes} bytes of digest {fact.digest[:8]}"


def renew(connection: Connection, now: float) -> None:
    """Make the copied run refuse trainers of the original, and the ids that it gives out new."""
    document = LoadRun()(connection)
    if document.body is None:
        return
    run = run_of(document)
    last = run.envs[-1].env_id if run.envs else 0
    first = max(run.first_env, last) + ENV_IDS_APART
    body = msgspec.json.encode(msgspec.structs.replace(run, envs=(), first_env=first))
    # Earlier versions kept the environments in the body.
    envs = {env.env_id: msgspec.json.encode(env) for env in run.envs}
    Renew(now)(connection)
    SaveRun(body, document.revision, fence=True, envs=envs)(connection)


# --- files ------------------------------------------------------------------------------


def _require_empty(folder: Path, what: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: {what} needs a new or an empty folder")


def _require_inside(backup: Path, name: str) -> None:
    if not (backup / name).resolve().is_relative_to(backup.resolve()):
        raise ConfigError(
            f"{backup / MANIFEST} names {name!r}, which is outside of the backup"
        )


def fact_of(path: Path) -> FileFact:
    with open(path, "rb") as file:
        return _copy(file, None, None)


def _copy(source: BinaryIO, target: Path | None, end: int | None) -> FileFact:
    """Copy the first ``end`` bytes (None: all), durably; without a target only read."""
    digest, done = blake2b(), 0
    with ExitStack() as stack:
        copy = None
        if target is not None:
            descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            copy = stack.enter_context(open(descriptor, "wb", buffering=0))
        while end is None or done < end:
            wanted = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - done)
            if not (chunk := source.read(wanted)):
                break  # a shorter file, whose groups are damaged in the original too
            digest.update(chunk)
            done += len(chunk)
            if copy is not None:
                copy.write(chunk)
        if copy is not None:
            os.fsync(copy.fileno())
    return FileFact(done, digest.hexdigest())


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
