"""Bounded log files of child processes that write on meanwhile.

NAME.log  NAME.log.1 (the newest of the older parts)  NAME.log.2 ...

A child inherits the open file, so a renamed file would go on growing under its new name. The text is
copied and the file is cut instead: the child appends, so its next line is at the start. What it
writes between the last copied byte and the cut is lost, as with the copytruncate of logrotate.
"""

from __future__ import annotations

from contextlib import suppress
from io import FileIO
from pathlib import Path

LOG_BYTES = 64 * 2**20  # a longer text becomes an older part
OLDER_PARTS = 3
COPIED_BYTES = 2**20


def keep_small(log: Path, max_bytes: int = LOG_BYTES, older_parts: int = OLDER_PARTS) -> bool:
    """Move the text of a log that is larger than ``max_bytes`` to its first older part.

    Returns whether it did. A full disk leaves the log as it is.
    """
    with suppress(OSError):
        if log.stat().st_size > max_bytes:
            _move(log, older_parts)
            return True
    return False


def part_of(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def _copy_rest(source: FileIO, copy: FileIO) -> None:
    while chunk := source.read(COPIED_BYTES):
        copy.write(chunk)


def _move(log: Path, older_parts: int) -> None:
    draft = log.with_name(f".{log.name}.part")
    try:
        with open(log, "r+b", buffering=0) as source, open(draft, "wb", buffering=0) as copy:
            _copy_rest(source, copy)
            for number in range(older_parts - 1, 0, -1):
                if part_of(log, number).exists():
                    part_of(log, number).replace(part_of(log, number + 1))
            draft.replace(part_of(log, 1))
            _copy_rest(source, copy)  # what the child wrote meanwhile
            source.truncate(0)
    finally:
        draft.unlink(missing_ok=True)
