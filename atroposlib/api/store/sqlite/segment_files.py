"""Files of the payload log, without any decision. Tests replace it by a disk that fails.

payload-00000001.log  payload-00000002.log ...   in the data directory
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from atroposlib.utils.io import sync_path

PARTS_PER_WRITE = 1024  # limit of pwritev
_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class SegmentFiles:
    """Files by number. A single thread writes, to a single file at a time; any thread reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._active: tuple[int, int] | None = None  # number, descriptor
        self._named = True  # whether the name of the active file is durable

    def path(self, no: int) -> Path:
        return self._folder / f"payload-{no:08}.log"

    def numbers(self) -> list[int]:
        names = [file.name for file in self._folder.glob("payload-*.log")]
        return sorted(int(name[8:-4]) for name in names if name[8:-4].isdigit())

    def filled_numbers(self) -> list[int]:
        """The numbers of files that hold bytes."""
        return [no for no in self.numbers() if self.size(no) > 0]

    def size(self, no: int) -> int:
        """Bytes of the file; 0 if there is none."""
        with suppress(FileNotFoundError):
            return self.path(no).stat().st_size
        return 0

    def write(self, no: int, start: int, parts: Sequence[bytes]) -> None:
        """Write ``parts`` in order from byte ``start``; not durable yet."""
        descriptor = self._descriptor(no)
        for i in range(0, len(parts), PARTS_PER_WRITE):
            some = parts[i : i + PARTS_PER_WRITE]
            size = sum(len(part) for part in some)
            done = os.pwritev(descriptor, some, start)
            if done < size:  # a nearly full disk: the next write reports the error
                joined = memoryview(b"".join(some))
                while done < size:
                    done += os.pwrite(descriptor, joined[done:], start + done)
            start += size

    def sync(self, no: int) -> None:
        """Make the file durable, and its name too if it is new."""
        _sync_data(self._descriptor(no))
        if not self._named:
            self.sync_folder()
            self._named = True

    def sync_folder(self) -> None:
        sync_path(self._folder)

    def read(self, no: int, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at each (start, length); none for a place outside of the file.

        Raises:
            OSError: there is no file.
        """
        descriptor = os.open(self.path(no), os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            # A damaged row must not decide how much memory is taken.
            inside = [0 <= start <= start + n <= size for start, n in places]
            return [
                os.pread(descriptor, n, start) if good else b""
                for good, (start, n) in zip(inside, places)
            ]
        finally:
            os.close(descriptor)

    def cut(self, no: int, n_bytes: int) -> None:
        """Cut a longer file to ``n_bytes``, durably."""
        if self.path(no).stat().st_size > n_bytes:
            with open(self.path(no), "r+b", buffering=0) as file:
                file.truncate(n_bytes)
                os.fsync(file.fileno())

    def delete(self, no: int) -> None:
        """Delete the file. After a power cut it may be there again."""
        if self._active is not None and self._active[0] == no:
            self.close()  # an open file keeps its space
        self.path(no).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the active file. Idempotent."""
        if self._active is not None:
            os.close(self._active[1])
            self._active = None

    def _descriptor(self, no: int) -> int:
        if self._active is None or self._active[0] != no:
            self.close()
            self._named = self.path(no).exists()
            self._active = no, os.open(self.path(no), os.O_RDWR | os.O_CREAT, 0o600)
        return self._active[1]
