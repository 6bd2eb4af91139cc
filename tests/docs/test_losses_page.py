"""docs/losses.md names every loss, every estimator and only settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from example_trainer.advantage.estimators import ESTIMATORS
from example_trainer.losses import FORMULAS
from example_trainer.settings.loss import AdvantageSettings, LossSettings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")


def rows_of(heading: str) -> list[str]:
    """Names in the first cells of the table below a heading."""
    section = TEXT.split(f"\n## {heading}")[1].split("\n## ")[0]
    table = re.search(r"\| name .*?\n\n", section, re.DOTALL)
    assert table is not None
    cells = re.findall(r"^\| (`[^|]*)\|", table[0], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_loss_is_documented():
    assert sorted(rows_of("Losses")) == sorted(FORMULAS)


def test_every_estimator_is_documented():
    assert sorted(rows_of("Advantages")) == sorted(ESTIMATORS)


def test_every_documented_setting_exists():
    prefixes = (
        "clip_",
        "dual_clip",
        "importance_",
        "sapo_",
        "m2_",
        "kl_",
        "distill_",
        "loss_",
    )
    prefixes += ("aggregation_", "advantage_", "reward_", "overlong_", "max_new", "dynamic_")
    fields = LossSettings.model_fields.keys() | AdvantageSettings.model_fields.keys()
    metrics = {"clip_ratio", "dual_clip_ratio", "importance_kl", "importance_capped_ratio"}
    metrics |= {"distill_kl", "distill_jsd", "distill_share"}
    named = set(re.findall(r"`(\w+)", TEXT)) - metrics
    strange = {n for n in named if n.startswith(prefixes)} - fields
    assert strange <= {"importance_", "loss_sum"}
