"""The directory of the SQLite store: whose it is, and whether its disk can be trusted."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import IO

from atroposlib.errors import ConfigError, StoreLocked

# f_type of statfs(2). On these a lock or an fsync may not mean what it says, and the
# shared memory of the log does not reach across machines. 9p and FUSE are not among them:
# containers (gVisor, fuse-overlayfs) report them for the local disk of their host.
NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x5346414F: "AFS",
    0x73757245: "Coda",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}
LOCAL_PLACES = ("/var/tmp", "/tmp", "/dev/shm")


def network_file_system(magic: int) -> str | None:
    """The name of a file system that the store cannot trust; None for all others."""
    return NETWORK_FILE_SYSTEMS.get(magic & 0xFFFFFFFF)


def magic_of(path: Path) -> int:
    """``f_type`` of the file system that holds ``path``; 0 where the system has no such."""
    if sys.platform != "linux":
        return 0
    answer = ctypes.create_string_buffer(512)  # longer than any struct statfs
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), answer) != 0:
        return 0
    return ctypes.c_long.from_buffer(answer).value


def require_local(path: Path) -> None:
    """Refuse a directory on a network file system.

    Raises:
        ConfigError: with local places to choose instead.
    """
    found = network_file_system(magic_of(path))
    if found is None:
        return
    places = [
        place
        for place in LOCAL_PLACES
        if os.access(place, os.W_OK) and network_file_system(magic_of(Path(place))) is None
    ]
    raise ConfigError(
        f"{path} is on {found}, where a queue on SQLite can be lost: give a --data-dir on a "
        f"local disk ({', '.join(places) or 'none was found'}; /dev/shm ends with the "
        "machine), or use --store postgresql://..."
    )


def free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


def own(data_dir: Path) -> IO[str]:
    """Hold a lock that ends with the process, however it ends.

    Raises:
        StoreLocked: another process holds it.
    """
    lock_file = open(data_dir / "lock", "a+")  # noqa: SIM115 - held until close()
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        lock_file.seek(0)
        owner = lock_file.read().strip() or "another process"
        lock_file.close()
        raise StoreLocked(
            f"{data_dir} belongs to process {owner}: stop it, or choose another --data-dir"
        ) from cause
    lock_file.truncate(0)
    lock_file.write(str(os.getpid()))
    lock_file.flush()
    return lock_file
