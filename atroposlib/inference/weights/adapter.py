"""LoRA adapter merged into the served weights: W = base + scale B A.

Requests keep the name of the served model, and all of them get the adapted weights. The
original of each merged weight is kept, so every adapter is merged into the loaded weights,
and unloading restores them bit for bit.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atroposlib.errors import WeightsError
from atroposlib.inference.weights.load import verify_finite

PREFIX = "base_model.model."
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


class MergedAdapter:
    """Name of the merged adapter, and the weights without it."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._base: dict[str, Tensor] = {}  # of the merged weights only

    def forget(self) -> None:
        """Drop the base after other weights were loaded; the next adapter uses those."""
        self.name, self._base = None, {}

    @torch.no_grad()
    def load(self, model: Any, directory: str, name: str) -> int:
        """Merge the adapter in ``directory`` in place of an earlier one.

        Returns the number of changed weights.

        Raises:
            WeightsError: nothing was changed; the adapter cannot be merged.
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
        """Restore the weights without it; return the number of changed ones.

        Raises:
            WeightsError: another adapter is merged, or none.
        """
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

    Raises:
        WeightsError: a file is missing or broken, the adapter is of a kind whose effect
            is not W + scale B A, or it does not fit the weights.
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
