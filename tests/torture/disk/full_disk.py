"""Full disk: acknowledged groups stay, drain, and free space again."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path

import apsw

from atroposlib.api.common.records import Claim, NewGroup
from atroposlib.api.decisions.batching import choose, complete_buffer
from atroposlib.api.store.sql.ack import Ack, Commit
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.api.store.sqlite import RESERVE_BYTES, SqliteStore
from atroposlib.api.store.sqlite.segment_files import SegmentFiles
from atroposlib.errors import StoreFull
from tests.torture.figures import MB, Figures, fast_folder

GROUP_BYTES = 256 * 1024
BATCH = 8  # sequences, two groups


class SmallFile(apsw.VFSFile):
    def __init__(self, disk: SmallDisk, name: str | apsw.URIFilename | None, flags: list[int]):
        super().__init__("", name, flags)  # type: ignore[arg-type]
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        grows = offset + len(data) - self.xFileSize()
        if grows > 0 and self._disk.free_bytes() < grows:
            raise apsw.FullError("no space left")
        super().xWrite(data, offset)


class SmallDisk(apsw.VFS):
    """``capacity`` bytes for the files of a folder; a write past it fails."""

    def __init__(self, name: str, folder: Path, capacity: int) -> None:
        self.name, self.capacity, self._folder = name, capacity, folder
        super().__init__(name, "")

    def free_bytes(self, _: Path | None = None) -> int:
        files = self._folder.rglob("*")
        return self.capacity - sum(f.stat().st_size for f in files if f.is_file())

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> SmallFile:
        return SmallFile(self, name, flags)


class SmallSegments(SegmentFiles):
    """Segment files on a :class:`SmallDisk`; a write past its end leaves a part behind."""

    def __init__(self, disk: SmallDisk, folder: Path) -> None:
        super().__init__(folder)
        self._disk = disk

    def write(self, no: int, start: int, parts: Sequence[bytes]) -> None:
        data = b"".join(parts)
        size = self.path(no).stat().st_size if self.path(no).exists() else 0
        fits = max(self._disk.free_bytes(), 0) + max(size - start, 0)
        super().write(no, start, [data[:fits]])
        if len(data) > fits:
            raise OSError(errno.ENOSPC, "no space left")


class Filler:
    """Posts until the disk is full, and trains until the queue is empty."""

    def __init__(self, store: SqliteStore, seed: int) -> None:
        self._store, self._rng = store, random.Random(seed)
        self.run = store.do(SaveRun(b"run", store.ask(LoadRun()).revision, fence=True))
        self.acknowledged: dict[int, bytes] = {}
        self.refused = 0

    def fill(self, times_full: int) -> int:
        """Post until it was refused so often; how many were taken."""
        taken = 0
        while times_full:
            payload = self._rng.randbytes(GROUP_BYTES)
            try:
                [stored] = self._store.put(
                    [NewGroup(payload, 4)], self.run.revision, complete_buffer
                )
            except StoreFull:
                self.refused += 1
                times_full -= 1
            else:
                self.acknowledged[stored.gid] = payload
                taken += 1
        return taken

    def drain(self) -> int:
        """Train on whole batches and commit; each payload must equal the acknowledged one."""
        trained = 0
        while True:
            claim = Claim(generation=self.run.generation, size=BATCH, now=0.0, lease_s=60.0)
            batch = self._store.do(
                ClaimBatch(
                    claim, lambda q, fair_share: choose(q, fair_share, batch_size=BATCH)
                )
            )
            if isinstance(batch, str):
                return trained
            for gid, payload in zip(batch.gids, self._store.read(batch.gids), strict=True):
                assert self.acknowledged.pop(gid) == payload
                trained += 1
            who = (batch.no, batch.generation, batch.epoch)
            assert self._store.do(Ack(*who, rank=None, commit=False))
            self._store.do(Commit(batch.no, batch.generation))


def full_disk_campaign(rounds: int, seed: int = 0) -> Figures:
    """First with the reserve of free space, then without: SQLite itself meets the end of
    the disk, and a larger disk puts everything right."""
    figures = Figures({"rounds": rounds, "acknowledged": 0, "refused": 0, "lost": 0})
    with fast_folder() as place:
        kept = SmallDisk(f"kept-{seed}", place / "kept", RESERVE_BYTES + 16 * MB)
        files = SmallSegments(kept, place / "kept")
        store = SqliteStore(
            place / "kept", vfs=kept.name, files=files, free_bytes=kept.free_bytes
        )
        filler = Filler(store, seed)
        for _ in range(rounds):
            taken = filler.fill(times_full=5)
            assert taken > 10, f"only {taken} fitted after everything was freed"
            figures["acknowledged"] += taken
            filler.drain()
            figures["lost"] += len(filler.acknowledged) // (BATCH // 4)
        figures["refused"] += filler.refused
        store.close()
        kept.unregister()

        bare = SmallDisk(f"bare-{seed}", place / "bare", 12 * MB)
        files = SmallSegments(bare, place / "bare")
        store = SqliteStore(
            place / "bare", vfs=bare.name, files=files, free_bytes=lambda _: 2**40
        )
        filler = Filler(store, seed)
        for _ in range(rounds):
            figures["acknowledged"] += filler.fill(times_full=5)
            bare.capacity += 48 * MB  # space was freed
            filler.drain()
            figures["lost"] += len(filler.acknowledged) // (BATCH // 4)
            bare.capacity -= 48 * MB - 4 * MB
        figures["refused"] += filler.refused
        store.close()
        bare.unregister()
    assert figures["lost"] == 0, figures.line("full disk")
    return figures
