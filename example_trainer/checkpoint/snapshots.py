"""Recovery checkpoints on disk, written atomically and verified on load.

save_path/recover/
    step_7/                 written aside, synced, renamed
        state.json          step, version, batch, counters, settings
        weights-0.safetensors ... optimizer-0.safetensors ... optimizer.json, rng.json
        manifest.json       size and SHA-256 of every other file
    step_8/
    LATEST                  "step_8", replaced after the rename
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import CheckpointError
from example_trainer.model.model_dir import numbered, sync, tidy, whole_directory

logger = logging.getLogger(__name__)
POINTER, MANIFEST, STATE = "LATEST", "manifest.json", "state"
SHARD_BYTES = 4 * 2**30
HASH_THREADS = 4  # hashlib releases the GIL

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """One verified checkpoint."""

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

    def tensors(self, group: str) -> dict[str, Tensor]:
        """Return the tensors of one group on the CPU; empty if there is no such group.

        Raises CheckpointError if a file of it cannot be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        loaded: dict[str, Tensor] = {}
        for path in sorted(self.directory.glob(f"{group}-*.safetensors")):
            try:
                loaded.update(load_file(path))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
        return loaded


class Snapshots:
    """The checkpoints in one directory. Only one process may use it at a time."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = keep

    def write(
        self, step: int, tensors: Mapping[str, Tensors], documents: Mapping[str, Any]
    ) -> Snapshot:
        """Write a checkpoint, make it the latest, and delete the oldest.

        Raises CheckpointError if the disk refuses the write; the others are unchanged.
        """
        final = self.directory / f"step_{step}"
        with whole_directory(final, durable=True) as draft:
            for group, named in tensors.items():
                _write_tensors(draft, group, named)
            for name, document in documents.items():
                _write_json(draft / f"{name}.json", document)
            _write_json(draft / MANIFEST, _manifest(draft))
        try:
            self._point_at(final.name)
        except OSError as error:
            raise CheckpointError(f"{self.directory / POINTER}: {error}") from error
        for path in self.kept(step, beyond=True):
            shutil.rmtree(path, ignore_errors=True)
        return Snapshot(final)

    def kept(self, step: int, *, beyond: bool = False) -> list[Path]:
        """Of the checkpoints up to ``step``, those that stay, or those ``beyond`` that.

        What lies after ``step`` was left by a run that got further and went back; it is
        written over when training gets there again.
        """
        reached = [
            path
            for path in numbered(self.directory, "step_*")
            if int(path.name.removeprefix("step_")) <= step
        ]
        return reached[: -self._keep] if beyond else reached[-self._keep :]

    def newest(self) -> Snapshot | None:
        """Return the latest intact checkpoint. A damaged one is logged and set aside."""
        tidy(self.directory)
        for path in list(self._candidates()):
            problem = problem_of(path)
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
        if not numbered(self.directory, "step_*"):
            return None
        aside = free_name(self.directory.with_name(f"{self.directory.name}_earlier"))
        self.directory.rename(aside)
        return aside

    def _candidates(self) -> Iterator[Path]:
        """Return the latest, then those before it, newest first."""
        paths = numbered(self.directory, "step_*")
        pointer = self.directory / POINTER
        latest = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else ""
        names = [path.name for path in paths]
        if latest in names:
            paths = paths[: names.index(latest) + 1]
        elif latest:
            logger.warning(f"RECOVERY CHECKPOINT MISSING: {pointer} names {latest}")
        yield from reversed(paths)

    def _point_at(self, name: str) -> None:
        draft = self.directory / f".{POINTER}.draft"
        draft.write_text(name, encoding="utf-8")
        sync(draft)
        os.replace(draft, self.directory / POINTER)
        sync(self.directory)


def free_name(path: Path) -> Path:
    """Return this path, or the first of path_2, path_3, ... that does not exist."""
    candidate, n = path, 1
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}_{n}")
    return candidate


def problem_of(directory: Path) -> str | None:
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
        found = _digests([directory / name for name in expected])
    except OSError as error:
        return f"it cannot be read ({error})"
    for (name, (_, digest)), actual_digest in zip(expected.items(), found):
        if digest != actual_digest:
            return f"{name} holds other bytes than were written"
    return None


def _manifest(directory: Path) -> dict[str, dict[str, int | str]]:
    paths = sorted(directory.iterdir())
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, _digests(paths))
    }


def _digests(paths: list[Path]) -> list[str]:
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return list(pool.map(_digest, paths))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")


def _write_tensors(directory: Path, group: str, named: Tensors) -> None:
    """Write files of at most ``SHARD_BYTES`` each, unless one tensor is larger."""
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    held, addresses = 0, set()
    for name, tensor in named.items():
        tensor = tensor.detach().contiguous()
        if tensor.numel() and tensor.data_ptr() in addresses:
            tensor = tensor.clone()  # safetensors refuses two names for one memory
        addresses.add(tensor.data_ptr())
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and held + size > SHARD_BYTES:
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        held += size
    for number, shard in enumerate(shards):
        if shard:
            save_file(shard, directory / f"{group}-{number:05d}.safetensors")


def capture_rng() -> dict[str, Any]:
    """Capture the generators of Python, torch on CPU and CUDA, and numpy if it is loaded."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": _text(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        state["cuda"] = _text(torch.cuda.get_rng_state())
    if "numpy" in sys.modules:
        import numpy

        kind, keys, place, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = [kind, [int(key) for key in keys], place, has_gauss, cached]
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Restore the result of :func:`capture_rng`; CheckpointError for anything else."""
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        torch.set_rng_state(_tensor(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(_tensor(state["cuda"]))
        if "numpy" in state:
            import numpy

            numpy.random.set_state(tuple(state["numpy"]))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"this is no state of random numbers: {error}") from error


def _text(tensor: Tensor) -> str:
    return base64.b64encode(bytes(tensor.tolist())).decode()


def _tensor(text: str) -> Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
