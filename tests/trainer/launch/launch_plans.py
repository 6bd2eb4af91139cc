"""The example plan with the settings of a test."""

from __future__ import annotations

from pathlib import Path

from example_trainer.launch.plan import Plan, read_plan
from example_trainer.settings.files import parse_override

GSM8K = str(Path(__file__).resolve().parents[3] / "example_trainer/configs/gsm8k_grpo.yaml")


def plan(*overrides: str, out: Path | str = "run") -> Plan:
    words = [f"out={out}", *overrides]
    return read_plan([GSM8K], [parse_override(word) for word in words])
