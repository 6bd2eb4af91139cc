"""Lock of a folder that a single process works in, with the name of the holder.

The lock lies on the folder (flock of its descriptor), so no file can be removed from under
it, and it ends with the process, however that ends. A file names the holder; it decides nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from atroposlib.errors import ConfigError

HOLDER = ".holder"
# Of network file systems without locks on folders; there the holder's own checks remain.
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class FolderLock:
    """A held folder; a context manager that frees it. It is made where it is missing.

    Raises:
        ConfigError: another process holds it; names that process, then the ``remedy``.
    """

    def __init__(self, folder: Path, remedy: str) -> None:
        self._folder, self._descriptor = folder, -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            problem = f"{folder} is no folder to work in: {error.strerror}"
            raise ConfigError(problem) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise ConfigError(
                    f"{folder} is in use by {_holder(folder)}: {remedy}"
                ) from error
        self._descriptor = descriptor
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError):  # a full disk, on which the holder may still work
            draft = folder / f"{HOLDER}.{os.getpid()}"
            draft.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}")
            draft.replace(folder / HOLDER)

    def close(self) -> None:
        """Free the folder. Idempotent."""
        if self._descriptor >= 0:
            with suppress(OSError):
                (self._folder / HOLDER).unlink()
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _holder(folder: Path) -> str:
    with suppress(OSError):
        return (folder / HOLDER).read_text(encoding="utf-8")[:200]
    return "another process"
