"""Copies of published weights on a node's own disk, shared by all processes of the node.

They lie below ``ATROPOS_NODE_DIR`` (default: the directory of temporary files), in a folder of the
user for each directory that versions are published to. A copy has the name of what was copied, which is
never used twice; the newest two stay.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from hashlib import blake2b
from pathlib import Path

from atroposlib.utils.models.weight_folders import node_folder, require_weight_folder

MODEL_FILES = ("config.json", "adapter_config.json")
KEPT = 1  # older copies: servers use the previous copy until they load the newest


def copy_once(directory: str) -> tuple[str, int]:
    """Path of the copy, and the bytes copied: 0 if another process of the node did it.

    Raises:
        OSError: no directory of a model, outside of the run, no room, or a folder of another user.
    """
    require_weight_folder(directory)
    source = Path(directory).resolve()
    if not any((source / name).is_file() for name in MODEL_FILES):
        raise FileNotFoundError(f"{directory} is no directory of a model or an adapter")
    folder = _folder(source.parent)
    target, draft = folder / source.name, folder / f".{source.name}"
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return str(target), 0
        copies = sorted(
            (path for path in folder.iterdir() if path.name != ".lock"),
            key=lambda path: path.stat().st_mtime_ns,
        )
        older = [copy for copy in copies if not copy.name.startswith(".")][-KEPT:]
        for copy in (*copies, draft):
            if copy not in older:  # room for the new copy
                shutil.rmtree(copy, ignore_errors=True)
        draft.mkdir()
        for file in filter(Path.is_file, source.iterdir()):  # nothing of folders in it
            shutil.copyfile(file, draft / file.name)
        os.utime(draft)
        draft.rename(target)
        return str(target), sum(path.stat().st_size for path in target.rglob("*"))


def _folder(published: Path) -> Path:
    """The folder for copies from a directory, which no other user can write."""
    own = node_folder()
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = own.lstat()
    if own.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{own} is not a folder that only this user can write")
    folder = own / blake2b(str(published).encode(), digest_size=8).hexdigest()
    folder.mkdir(exist_ok=True)
    return folder
