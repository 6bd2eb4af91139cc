"""Figures of a check, their limits, and the place where checks run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """Line of the page. ``bound`` is a limit, or the reference of a ratio."""

    what: str
    value: str
    bound: str = ""
    ok: bool = True


def below(what: str, value: float, limit: float, unit: str = "") -> Figure:
    """A value that must not exceed a limit; NaN fails."""
    return Figure(what, f"{value:.3g}{unit}", f"<= {limit:g}{unit}", value <= limit)


def above(what: str, value: float, limit: float) -> Figure:
    return Figure(what, f"{value:.3g}", f">= {limit:g}", value >= limit)


def holds(what: str, value: object, bound: str, ok: bool) -> Figure:
    return Figure(what, str(value), bound, ok)


def ratio(what: str, ours: float, theirs: float, unit: str, reference: str) -> Figure:
    """A speed and its ratio to a reference of the same run; never a reason to fail."""
    return Figure(what, f"{ours:,.0f} {unit}", f"{ours / theirs:.2f} x {reference}")


@dataclass(frozen=True)
class Place:
    """Place of a check: device, folder for models and runs, and shape of the model."""

    device: str  # cuda or cpu
    scratch: Path
    wanted: str = "135m"

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def patience(self) -> float:
        """Factor of bounds: a dry run shares its cores."""
        return 1.0 if self.on_cuda else 10.0

    @property
    def size(self) -> str:
        """The wanted shape on a GPU, the tiny shape in a dry run."""
        return self.wanted if self.on_cuda else "tiny"
