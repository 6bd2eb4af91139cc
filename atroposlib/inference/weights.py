"""New weights from a directory into the model's own tensors, all or none.

Names and shapes of every tensor are verified against the file headers before the first
byte is copied; a mismatch leaves the served weights as they were. Tied tensors (an
output layer that is the embedding) are one tensor under two names: writing either
writes both, and a file that holds both names with different content is refused.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from atroposlib.errors import WeightsError


@torch.no_grad()
def load_in_place(model: Any, directory: str | Path) -> int:
    """Copy ``directory``/*.safetensors into ``model``; returns the number of tensors.

    Raises:
        WeightsError: nothing was changed; the message names file, tensor and reason.
    """
    files = weight_files(Path(directory))
    targets: dict[str, Tensor] = model.state_dict(keep_vars=True)
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for file in files:
            try:
                reader = stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as cause:
                raise WeightsError(f"{file} cannot be read: {cause}") from cause
            found.update({name: reader for name in reader.keys()})
        _verify(targets, {n: tuple(r.get_slice(n).get_shape()) for n, r in found.items()})
        staged = {name: reader.get_tensor(name) for name, reader in found.items()}
        _verify_ties(targets, staged)
        _verify_finite(staged)
        for name, tensor in staged.items():
            targets[name].copy_(tensor)
    return len(staged)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory, by its index if there is one."""
    if not directory.is_dir():
        raise WeightsError(f"{directory} is not a directory")
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [directory / name for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    missing = [file.name for file in files if not file.exists()]
    if missing or not files:
        raise WeightsError(f"{directory} lacks {', '.join(missing) or 'a .safetensors file'}")
    return files


def _verify(targets: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    unknown = sorted(set(shapes) - set(targets))
    if unknown:
        raise WeightsError(f"the served model has no {_listed(unknown)}")
    written = {targets[name].data_ptr() for name in shapes}
    missing = sorted(n for n, t in targets.items() if t.data_ptr() not in written)
    if missing:
        raise WeightsError(f"the files lack {_listed(missing)}")
    for name, shape in shapes.items():
        if tuple(targets[name].shape) != shape:
            expected = tuple(targets[name].shape)
            raise WeightsError(f"{name} has shape {shape} where {expected} is served")


def _verify_ties(targets: dict[str, Tensor], staged: dict[str, Tensor]) -> None:
    first_name: dict[int, str] = {}
    for name, tensor in staged.items():
        other = first_name.setdefault(targets[name].data_ptr(), name)
        if other != name and not torch.equal(staged[other], tensor):
            raise WeightsError(
                f"{name} and {other} are one tensor here but differ in the files"
            )


def _verify_finite(staged: dict[str, Tensor]) -> None:
    for name, tensor in staged.items():
        if tensor.is_floating_point() and not bool(
            torch.isfinite(tensor.sum(dtype=torch.float32))
        ):
            raise WeightsError(f"{name} holds numbers that are not finite")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
