"""A disk that loses unsynced writes: an SQLite VFS and segment files with power cuts.

folder   what the running program reads back: real files, best on a RAM disk
durable  what was synced, by file: no cut touches it
changes  what happened to a file since, which a cut may keep, drop or tear
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import apsw

from atroposlib.api.store.sqlite.segment_files import SegmentFiles

SECTOR = 512  # bytes a drive writes whole or not at all


class NoPower(OSError, apsw.IOError):
    """The power is gone, for both layers."""


class Fate(Enum):
    """Effect of a power cut on the unsynced changes of one file."""

    DROPPED = "dropped"
    KEPT = "kept"
    TORN = "torn"  # each sector of each write for itself
    MIXED = "mixed"  # each write whole or not at all, in any combination


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes written at ``offset``; without bytes the file was cut to ``offset``."""

    offset: int
    data: bytes | None

    def apply(self, to: bytearray) -> None:
        if self.data is None:
            del to[self.offset :]
            return
        if len(to) < self.offset:
            to.extend(bytes(self.offset - len(to)))
        to[self.offset : self.offset + len(self.data)] = self.data

    def sectors(self) -> list[Change]:
        if self.data is None:
            return [self]
        steps = range(0, len(self.data), SECTOR)
        return [Change(self.offset + i, self.data[i : i + SECTOR]) for i in steps]


@dataclass(slots=True)
class File:
    durable: bytearray | None = None  # None: not even its name was synced
    changes: list[Change] = field(default_factory=list)
    named: bool = True  # False: its folder was not synced since it was made

    def sync(self) -> None:
        if self.durable is None:
            self.durable = bytearray()
        for change in self.changes:
            change.apply(self.durable)
        self.changes = []

    def _with(self, changes: Iterable[Change]) -> bytearray:
        content = bytearray(self.durable or b"")
        for change in changes:
            change.apply(content)
        return content

    def survivor(self, fate: Fate, rng: random.Random) -> bytes | None:
        if not self.named and (fate is Fate.DROPPED or rng.random() < 0.5):
            return None
        if fate is Fate.DROPPED:
            return None if self.durable is None else bytes(self.durable)
        changes = self.changes
        if fate is Fate.TORN:
            changes = [part for change in changes for part in change.sectors()]
        if fate is not Fate.KEPT:
            changes = [change for change in changes if rng.random() < 0.5]
        return bytes(self._with(changes))


class Disk:
    """The files of one folder, and a fuse: after so many writes and syncs the power is gone."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.steps_left: int | None = None  # None: no cut is planned
        self.has_power = True
        self._files: dict[str, File] = {}
        self._deleted: dict[str, bytes] = {}  # names whose end was not synced

    def opened(self, path: str) -> File:
        return self._files.setdefault(Path(path).name, File())

    def step(self) -> None:
        """Count a write or sync; at the planned one the power goes."""
        self.require_power()
        if self.steps_left is not None:
            self.steps_left -= 1
            self.has_power = self.steps_left > 0

    def require_power(self) -> None:
        if not self.has_power:
            raise NoPower(errno.EIO, "no power")

    def delete(self, path: str, synced: bool) -> None:
        name = Path(path).name
        gone = self._files.pop(name, None)
        if gone is not None and gone.durable is not None and gone.named and not synced:
            self._deleted[name] = bytes(gone.durable)

    def sync(self, file: File) -> None:
        if file.durable is None:  # as SQLite does for new logs: their folder is synced too
            self.sync_names()
        file.sync()

    def sync_names(self) -> None:
        self._deleted.clear()
        for file in self._files.values():
            file.named = True

    def after_cut(self, folder: Path, rng: random.Random) -> Disk:
        """The disk as the next start finds it."""
        after = Disk(folder)
        fates = list(Fate)
        together = rng.choice([None, *fates])  # all files alike, or each its own fate
        for name, file in self._files.items():
            after._put(name, file.survivor(together or rng.choice(fates), rng))
        for name, old in self._deleted.items():
            if name not in self._files and rng.random() < 0.5:
                after._put(name, old)
        return after

    def _put(self, name: str, content: bytes | None) -> None:
        if content is not None:
            self._files[name] = File(bytearray(content))
            (self.folder / name).write_bytes(content)


class OpenFile(apsw.VFSFile):
    """One open file; other calls are forwarded to the real file."""

    def __init__(
        self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)  # type: ignore[arg-type]
        self._disk = disk
        if name is None:
            self._file = File()  # a temporary file, invisible to other processes
        else:
            self._file = disk.opened(name if isinstance(name, str) else name.filename())

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.require_power()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.step()
        self._file.changes.append(Change(offset, bytes(data)))
        self._disk.require_power()  # the write that the cut interrupted may be torn
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.step()
        self._file.changes.append(Change(newsize, None))
        self._disk.require_power()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.step()
        self._disk.require_power()  # an interrupted sync promised nothing
        self._disk.sync(self._file)


class LossySegments(SegmentFiles):
    """The segment files on a disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.folder)
        self._disk = disk

    def _change(self, no: int, change: Change) -> None:
        self._disk.step()
        file = self._disk.opened(str(self.path(no)))
        file.named = file.named and self.path(no).exists()
        file.changes.append(change)
        self._disk.require_power()  # a write that the cut interrupted may be torn

    def write(self, no: int, start: int, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._change(no, Change(start, bytes(part)))
            super().write(no, start, [part])
            start += len(part)

    def sync(self, no: int) -> None:
        self._disk.step()
        self._disk.require_power()
        self._disk.opened(str(self.path(no))).sync()
        super().sync(no)

    def sync_folder(self) -> None:
        self._disk.step()
        self._disk.require_power()
        self._disk.sync_names()

    def read(self, no: int, places: Sequence[tuple[int, int]]) -> list[bytes]:
        self._disk.require_power()
        return super().read(no, places)

    def cut(self, no: int, n_bytes: int) -> None:
        if self.path(no).stat().st_size > n_bytes:
            self._change(no, Change(n_bytes, None))
            super().cut(no, n_bytes)
            self._disk.step()
            self._disk.require_power()
            self._disk.opened(str(self.path(no))).sync()

    def delete(self, no: int) -> None:
        self._disk.step()
        self._disk.require_power()
        self._disk.delete(str(self.path(no)), synced=False)
        super().delete(no)


class LossyVfs(apsw.VFS):
    """SQLite on the :class:`Disk` that is put in."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name, self.disk = name, disk
        super().__init__(name, "")

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.disk.step()
        self.disk.require_power()
        self.disk.delete(filename, bool(syncdir))
        super().xDelete(filename, syncdir)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> OpenFile:
        self.disk.require_power()
        return OpenFile(self.disk, name, flags)
