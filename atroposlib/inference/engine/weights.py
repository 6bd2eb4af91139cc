"""In-place weight updates of the local server: all weights, or a merged LoRA adapter.

All weights come from a model directory, a file in shared memory, or tensors in memory. Names
and shapes of every tensor are verified before the first byte is copied; a mismatch leaves the
served weights as they were. Tied tensors (an output layer that is the embedding) are a single
tensor under two names: writing either writes both, and weights that hold both names with
different content are refused.

An adapter is merged: W = base + scale B A. Requests keep the name of the served model, and all
requests get the adapted weights. The original of each merged weight is kept, so every adapter is
merged into the loaded weights, and unloading restores the loaded weights bit for bit.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from atroposlib.errors import WeightsError

PREFIX = "base_model.model."
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
# transformers changes attributes of torch while it loads, so threads load in turn.
_CONVERSION = threading.Lock()


def load_in_place(model: Any, directory: str | Path) -> int:
    """Copy ``directory``/*.safetensors into ``model``; as :func:`copy_tensors`."""
    with ExitStack() as stack:
        tensors: dict[str, Any] = {}
        for file in weight_files(Path(directory)):
            reader = _reader(file, stack)
            tensors.update({name: reader for name in reader.keys()})
        if not tensors.keys() <= model.state_dict().keys():
            if (converted := _convert(model, directory)) is not None:
                return copy_tensors(model, converted)
        shapes = {n: tuple(r.get_slice(n).get_shape()) for n, r in tensors.items()}
        verify_shapes(model, shapes, complete=True)
        return copy_tensors(model, {n: r.get_tensor(n) for n, r in tensors.items()})


def _convert(model: Any, directory: str | Path) -> dict[str, Tensor] | None:
    """The weights under the names of ``model``; None if the directory is of another model.

    transformers saves the experts of some models separately and holds a single tensor.
    It fills missing weights with random numbers, so missing weights are refused.
    """
    try:
        with _CONVERSION:
            loaded, report = type(model).from_pretrained(
                directory, dtype=model.dtype, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError):
        return None
    if any(
        report.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    ):
        return None
    weights: dict[str, Tensor] = loaded.state_dict()
    return weights


def load_shared(model: Any, path: str, version: int) -> int:
    """Copy a safetensors file that the trainer keeps in memory; as :func:`copy_tensors`.

    The trainer rewrites the same file for every version, and its header names the version
    that is whole in it: a file of another version, or a half-written file, is refused.
    """
    _require_private(path)
    with ExitStack() as stack:
        reader = _reader(Path(path), stack)
        held = (reader.metadata() or {}).get("version", "no version").strip()
        if held != str(version):
            raise WeightsError(f"{path} holds {held!r}, not version {version}")
        return copy_tensors(model, {name: reader.get_tensor(name) for name in reader.keys()})


@torch.no_grad()
def copy_tensors(model: Any, tensors: Mapping[str, Tensor]) -> int:
    """Replace all weights of ``model``; return their number. Raises WeightsError: none is."""
    verify_shapes(model, {n: tuple(t.shape) for n, t in tensors.items()}, complete=True)
    targets: dict[str, Tensor] = model.state_dict(keep_vars=True)
    _verify_ties(targets, tensors)
    verify_finite(tensors)
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)
    return len(tensors)


def _reader(file: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(file, framework="pt"))
    except (SafetensorError, OSError) as cause:
        raise WeightsError(f"{file} cannot be read: {cause}") from cause


def _require_private(path: str) -> None:
    """Require a regular file that only this user can read and write."""
    try:
        info = os.lstat(path)
    except OSError as cause:
        raise WeightsError(f"{path} cannot be read: {cause.strerror}") from cause
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise WeightsError(f"{path} is not a file of this user that nobody else can reach")


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory, by its index, if any."""
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


def verify_shapes(
    model: Any, shapes: Mapping[str, tuple[int, ...]], *, complete: bool
) -> None:
    """Raises WeightsError unless every name is a tensor of the model with this shape.

    With ``complete``, no tensor of the model may be missing either.
    """
    targets: dict[str, Tensor] = model.state_dict(keep_vars=True)
    unknown = sorted(set(shapes) - set(targets))
    if unknown:
        raise WeightsError(f"the served model has no {_name_list(unknown)}")
    written = {targets[name].data_ptr() for name in shapes}
    missing = sorted(n for n, t in targets.items() if t.data_ptr() not in written)
    if complete and missing:
        raise WeightsError(f"the new weights lack {_name_list(missing)}")
    for name, shape in shapes.items():
        if tuple(targets[name].shape) != shape:
            expected = tuple(targets[name].shape)
            raise WeightsError(f"{name} has shape {shape} where {expected} is served")


def _verify_ties(targets: Mapping[str, Tensor], staged: Mapping[str, Tensor]) -> None:
    first_name: dict[int, str] = {}
    for name, tensor in staged.items():
        first = first_name.setdefault(targets[name].data_ptr(), name)
        if first != name and not torch.equal(staged[first], tensor):
            raise WeightsError(
                f"{name} and {first} are one tensor here but differ in the files"
            )


def verify_finite(staged: Mapping[str, Tensor]) -> None:
    """Raises WeightsError for a tensor with a number that is not finite."""
    for name, tensor in staged.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # A NaN is both; an eighth of the time of a sum in float32.
        extremes = torch.stack(torch.aminmax(tensor))
        if not bool(torch.isfinite(extremes).all()):
            raise WeightsError(f"{name} holds numbers that are not finite")


def _name_list(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# --- LoRA adapters --------------------------------------------------------------------


class MergedAdapter:
    """Name of the merged adapter, and the weights without it."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._base: dict[str, Tensor] = {}  # original of the merged weights only

    def forget(self) -> None:
        """Drop the base after new weights were loaded; the next adapter uses the new weights."""
        self.name, self._base = None, {}

    @torch.no_grad()
    def load(self, model: Any, directory: str, name: str) -> int:
        """Merge the adapter in ``directory`` in place of an earlier adapter.

        Returns the number of changed weights. Raises WeightsError: nothing was changed.
        """
        targets: dict[str, Tensor] = model.state_dict(keep_vars=True)
        deltas = read_deltas(Path(directory), targets)
        base = {key: self._base.get(key, targets[key].detach()) for key in deltas}
        merged = {
            key: (base[key].float() + delta.to(base[key].device)).to(base[key].dtype)
            for key, delta in deltas.items()
        }
        verify_finite(merged)
        self._restore(targets)
        for key, weight in merged.items():
            self._base[key] = targets[key].detach().clone()
            targets[key].copy_(weight)
        self.name = name
        return len(merged)

    @torch.no_grad()
    def unload(self, model: Any, name: str) -> int:
        """Restore the weights without it; return their number. Raises WeightsError."""
        if name != self.name:
            raise WeightsError(f"adapter {name!r} is not loaded; {self.name!r} is")
        count = self._restore(model.state_dict(keep_vars=True))
        self.name = None
        return count

    def _restore(self, targets: dict[str, Tensor]) -> int:
        for key, weight in self._base.items():
            targets[key].copy_(weight)
        count, self._base = len(self._base), {}
        return count


def read_deltas(directory: Path, targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """scale B A in float32 for each weight of ``targets`` that a peft adapter changes.

    Raises WeightsError for a file that is broken or does not fit, or an unknown kind of adapter.
    """
    try:
        config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
        tensors = load_file(directory / WEIGHTS_FILE)
    except (OSError, ValueError, SafetensorError) as cause:
        raise WeightsError(f"{directory} is not a LoRA adapter: {cause}") from cause
    _require_plain(config, directory)
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        module, _, half = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        name = f"{module}.weight"
        if half not in ("A", "B") or name not in targets:
            raise WeightsError(f"the served model has no place for {key} of {directory}")
        halves.setdefault(name, {})[half] = tensor.float()
    deltas = {}
    for name, pair in halves.items():
        if set(pair) != {"A", "B"}:
            raise WeightsError(f"{directory} has only one half of the adapter of {name}")
        a, b = pair["A"], pair["B"]  # (rank, in), (out, rank)
        transposed = bool(config.get("fan_in_fan_out"))
        shape = tuple(targets[name].shape)[:: -1 if transposed else 1]
        rank = a.shape[0]
        if tuple(b.shape) + tuple(a.shape) != (shape[0], rank, rank, shape[-1]):
            raise WeightsError(
                f"{directory} has {tuple(b.shape)} x {tuple(a.shape)} for {name}, whose weight"
                f" is {shape}"
            )
        delta = b @ a * _scale(config, name, rank)
        deltas[name] = delta.T if transposed else delta
    if not deltas:
        raise WeightsError(f"{directory} changes nothing")
    return deltas


def _require_plain(config: dict[str, Any], directory: Path) -> None:
    accepted: dict[str, tuple[Any, ...]] = {
        "peft_type": ("LORA",),
        "use_dora": (None, False),
        "bias": (None, "none"),
        "modules_to_save": (None, []),
        "lora_bias": (None, False),
    }
    for setting, plain in accepted.items():
        value = config.get(setting)
        if value not in plain:
            raise WeightsError(f"{directory}: {setting} {value!r} cannot be merged")


def _scale(config: dict[str, Any], name: str, rank: int) -> float:
    """lora_alpha / r, or / sqrt(r) for rank-stabilised adapters (arXiv 2312.03732)."""
    module = name.removesuffix(".weight")
    alpha = float(config.get("lora_alpha") or rank)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if module == pattern or module.endswith(f".{pattern}"):
            alpha = float(value)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
