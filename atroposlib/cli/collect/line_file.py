"""File of JSON lines that contains each batch exactly once, also after a kill.

    lines of batch n --append, sync--> FILE --> FILE.progress --> ack of batch n
                                                "n is in the first b bytes"

After a kill before the second arrow, the bytes after the last progress are cut at the next
start, and the API, which got no ack, delivers the batch again. After a kill behind it, the
batch is delivered again too, is found in the progress, and is acked without being written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.text.lines import json_line
from atroposlib.utils.io import sync_path, write_whole
from atroposlib.wire import ClaimedBatch


@dataclass(frozen=True)
class Progress:
    """Progress of a collection, stored next to the file until the collection is done."""

    bytes: int  # size of the file
    lines: int = 0  # written by this collection
    run_id: str = ""
    batch_no: int = 0  # the last batch whose lines are in the file


class LineFile:
    """The file of lines and its progress file.

    Raises ConfigError: the file exists and ``append`` is false, or is shorter than it was.
    """

    def __init__(self, path: Path, *, append: bool) -> None:
        self.path = path
        self._progress_path = path.with_name(path.name + ".progress")
        if path.exists() and not append:
            cut_off = self._progress_path.exists()
            raise ConfigError(
                f"{path} exists"
                + (" and its collection was cut off" if cut_off else "")
                + ": name another file, or add --append-to-previous to go on with it"
            )
        if not path.parent.is_dir():
            raise ConfigError(f"{path.parent} is no directory: create it first")
        self.resumed = path.exists() and self._progress_path.exists()
        size = path.stat().st_size if path.exists() else 0
        self.progress = self._read() if self.resumed else Progress(size)
        if size < self.progress.bytes:
            raise ConfigError(
                f"{path} has {size} bytes, fewer than were collected: if that is right,"
                f" remove {self._progress_path}"
            )
        self.cut = size - self.progress.bytes  # bytes of an unfinished batch

    def open(self, run_id: str) -> None:
        """Create the file, or cut the unfinished batch of a killed collection."""
        with self.path.open("ab") as file:
            file.truncate(self.progress.bytes)
        size = self.progress.bytes
        if size and not _ends_a_line(self.path):
            with self.path.open("ab") as file:
                file.write(b"\n")
            size += 1
        same = run_id == self.progress.run_id
        batch_no = self.progress.batch_no if same else 0
        self._save(replace(self.progress, bytes=size, run_id=run_id, batch_no=batch_no))

    def holds(self, batch: ClaimedBatch) -> bool:
        """Whether the file contains the lines of this batch of the opened run."""
        return batch.batch_no is not None and batch.batch_no == self.progress.batch_no

    def append(self, lines: Sequence[dict[str, Any]], batch_no: int) -> None:
        """Write the lines of a batch; lines and progress are on disk on return."""
        data = "".join(map(json_line, lines)).encode()
        with self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._save(
            replace(
                self.progress,
                bytes=self.progress.bytes + len(data),
                lines=self.progress.lines + len(lines),
                batch_no=batch_no,
            )
        )

    def finish(self) -> None:
        """Delete the progress of a complete collection; the next collection starts from 0."""
        self._progress_path.unlink(missing_ok=True)

    def _read(self) -> Progress:
        try:
            return Progress(**json.loads(self._progress_path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self._progress_path} cannot be read ({error})") from error

    def _save(self, progress: Progress) -> None:
        write_whole(self._progress_path, json.dumps(asdict(progress)))
        sync_path(self.path.parent)
        self.progress = progress


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
