"""Recovery checkpoints on disk, written atomically and verified on load.

save_path/recover/
    step_7/                 written aside, synced, renamed
        state.json          step, version, batch, counters, settings
        weights-<rank>-<n>.safetensors ... optimizer-<rank>-<n>.safetensors ...
        index.json          the parts of every tensor in these files
        optimizer.json, rng.json
        manifest.json       size and SHA-256 of every other file
    step_8/
    LATEST                  "step_8", replaced after the rename

Checkpoints of format 1 have whole tensors in ``weights-<n>.safetensors`` and no index.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.errors import CheckpointError
from atroposlib.utils.io import file_sha256, sync_path, whole_file
from example_trainer.checkpoint.shards import (
    StoredTensor,
    Written,
    headers_index,
    write_json,
)
from example_trainer.model.model_dir import (
    discard,
    numbered_directories,
    tidy,
    whole_directory,
)

logger = logging.getLogger(__name__)
POINTER, MANIFEST, INDEX, STATE = "LATEST", "manifest.json", "index", "state"
HASH_THREADS = 4  # hashlib releases the GIL


@dataclass(frozen=True)
class Snapshot:
    """A verified checkpoint."""

    directory: Path

    def document(self, name: str) -> Any:
        """Return the JSON document of this name, or None; CheckpointError if it is no JSON."""
        path = self.directory / f"{name}.json"
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{path} is no JSON: {error}") from error

    def tensors(self, group: str) -> dict[str, StoredTensor]:
        """Return the tensors of a group; empty if the group does not exist.

        Raises CheckpointError if a file of it cannot be read.
        """
        index = self.document(INDEX)
        if index is None:
            entries = headers_index(self.directory, group)
        else:
            entries = index.get(group, {})
        try:
            return {
                name: StoredTensor(self.directory, name, entry)
                for name, entry in entries.items()
            }
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.directory}: no index of tensors: {error!r}"
            ) from error


class Snapshots:
    """The checkpoints in a directory, which only one trainer may use at a time."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = keep

    @contextmanager
    def draft(self, step: int) -> Iterator[Path]:
        """A directory that becomes the latest checkpoint at the end; then delete the oldest.

        Raises CheckpointError if the disk refuses the write; earlier checkpoints stay.
        """
        final = self.directory / f"step_{step}"
        with whole_directory(final, durable=True) as draft:
            yield draft
        try:
            self._point_at(final.name)
        except OSError as error:
            raise CheckpointError(f"{self.directory / POINTER}: {error}") from error
        for path in self.kept_checkpoints(step, beyond=True):
            discard(path)

    def kept_checkpoints(self, step: int, *, beyond: bool = False) -> list[Path]:
        """Checkpoints up to ``step`` that stay; ``beyond``: the older checkpoints that go.

        Checkpoints after ``step`` were left by a run that got further and went back; training
        overwrites each when it gets there again.
        """
        reached = [
            path
            for path in numbered_directories(self.directory, "step_*")
            if int(path.name.removeprefix("step_")) <= step
        ]
        return reached[: -self._keep] if beyond else reached[-self._keep :]

    def newest(self) -> Snapshot | None:
        """The latest intact checkpoint. Damaged checkpoints are logged and set aside."""
        tidy(self.directory)
        for path in list(self._candidates()):
            problem = checkpoint_problem(path)
            if problem is None:
                return Snapshot(path)
            aside = free_name(path.with_name(f"damaged_{path.name}"))
            path.rename(aside)
            logger.warning(
                f"RECOVERY CHECKPOINT DAMAGED: {path}: {problem}; it is {aside.name} now,"
                " and the one before it is tried"
            )
        return None

    def set_aside(self) -> Path | None:
        """Move everything aside for another run; nothing is deleted."""
        if not numbered_directories(self.directory, "step_*"):
            return None
        aside = free_name(self.directory.with_name(f"{self.directory.name}_earlier"))
        self.directory.rename(aside)
        return aside

    def _candidates(self) -> Iterator[Path]:
        """Yield the latest checkpoint, then earlier checkpoints, newest first."""
        paths = numbered_directories(self.directory, "step_*")
        pointer = self.directory / POINTER
        latest = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else ""
        names = [path.name for path in paths]
        if latest in names:
            paths = paths[: names.index(latest) + 1]
        elif latest:
            logger.warning(f"RECOVERY CHECKPOINT MISSING: {pointer} names {latest}")
        yield from reversed(paths)

    def _point_at(self, name: str) -> None:
        with whole_file(self.directory / POINTER) as draft:
            draft.write_text(name, encoding="utf-8")
            sync_path(draft)
        sync_path(self.directory)


def seal(draft: Path, written: Written, documents: Mapping[str, Any]) -> None:
    """Write the documents, the index and the manifest next to the tensors of all ranks."""
    manifest = dict(written.files)
    for name, document in {**documents, INDEX: written.index}.items():
        manifest[f"{name}.json"] = write_json(draft / f"{name}.json", document)
    write_json(draft / MANIFEST, manifest)


def free_name(path: Path) -> Path:
    """Return this path, or the first of path_2, path_3, ... that does not exist."""
    candidate, n = path, 1
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}_{n}")
    return candidate


def checkpoint_problem(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if every byte matches the manifest."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: (int(f["bytes"]), str(f["sha256"])) for name, f in manifest.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    for name, (size, _) in expected.items():
        if not (directory / name).is_file():
            return f"{name} is missing"
        if (actual := (directory / name).stat().st_size) != size:
            return f"{name} has {actual} bytes instead of {size}"
    try:
        digests = _digests([directory / name for name in expected])
    except OSError as error:
        return f"it cannot be read ({error})"
    for (name, (_, digest)), actual_digest in zip(expected.items(), digests):
        if digest != actual_digest:
            return f"{name} holds other bytes than were written"
    return None


def _digests(paths: list[Path]) -> list[str]:
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return list(pool.map(file_sha256, paths))
