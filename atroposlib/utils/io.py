"""Files that appear whole, names of files, and JSON bodies of aiohttp-style HTTP responses."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from atroposlib.errors import AtroposError, boundary
from atroposlib.text.lines import encodable

# Free space that the rollout API leaves on the disk of its store.
DISK_RESERVE_BYTES = 48 * 2**20
BLOCK_BYTES = 4 * 2**20  # a file is read in parts
NAME_CHARS = 120  # file systems take 255 bytes, and suffixes follow
NAME_DIGEST_CHARS = 12


def existing_folder(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def free_bytes(folder: Path) -> int:
    """Free space on the disk that a folder is on, or will be."""
    return shutil.disk_usage(existing_folder(folder)).free


def write_whole(path: Path, text: str) -> None:
    """Write the file aside, sync it, and rename it: a reader gets the old text or all of the new.

    Text that UTF-8 cannot encode is replaced, so that no file is lost to a character.
    Only this user can read it (0600). Several processes may write it at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    )
    with ExitStack() as undo:
        undo.callback(Path(draft.name).unlink)
        with draft:
            draft.write(encodable(text))
            draft.flush()
            os.fsync(draft.fileno())
        Path(draft.name).replace(path)
        undo.pop_all()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name aside, for a file that the block writes; it becomes ``path`` at the end of the block.

    After an error the old file stays, and nothing is left aside.
    """
    draft = path.with_name(f".{path.name}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Flush this file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def file_name_of(name: str) -> str:
    """The file name of an environment's ``name``: different names have different file names.

    Example: file_name_of("math/easy") == "math%2Feasy"
    """
    quoted = quote(name, safe="", errors="surrogatepass")
    if len(quoted) <= NAME_CHARS:
        return quoted
    digest = hashlib.sha256(quoted.encode()).hexdigest()[:NAME_DIGEST_CHARS]
    return f"{quoted[: NAME_CHARS - NAME_DIGEST_CHARS - 1]}~{digest}"


def name_of_file(file_name: str) -> str:
    """The name of which :func:`file_name_of` made ``file_name``; of a long name the beginning."""
    return unquote(file_name)


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON body of ``resp``; a bad status or body is logged with its text and raised."""
    try:
        resp.raise_for_status()
        return await resp.json()
    except Exception as error:
        log = logger or logging.getLogger(__name__)
        log.error("status %s: %s: %s", resp.status, error, await _body(resp))
        raise


async def _body(resp: Any) -> str:
    """Body for the log; a failure to read it must not hide the original error."""
    try:
        with boundary("http reply", resp.status, "reading the body"):
            return str(await resp.text())
    except AtroposError as error:
        return f"({error})"
