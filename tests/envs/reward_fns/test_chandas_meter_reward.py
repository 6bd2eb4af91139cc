"""Metre reward. No release of chandas loads, so a stand-in has its two functions."""

from __future__ import annotations

import sys

import pytest

from atroposlib.envs.reward_fns import registry

STAND_IN = """
class svat_identifier:
    @staticmethod
    def IdentifyFromPatternLines(lines):
        return {
            "GGL": {"exact": {"Triṣṭubh": 1}, "accidental": {"Triṣṭubh": 1}},
            "G": {"partial": {"Triṣṭubh": 1}},
        }.get("".join(lines), {})

def to_pattern_lines(lines):
    return [line.strip() for line in lines]
"""


@pytest.fixture
def without_chandas(monkeypatch):
    from atroposlib.envs.reward_fns import chandas_meter_reward

    chandas_meter_reward._chandas.cache_clear()
    monkeypatch.delitem(sys.modules, "chandas", raising=False)
    yield
    chandas_meter_reward._chandas.cache_clear()
    sys.modules.pop("chandas", None)


def test_the_chandas_meter_reward_is_the_confidence_of_the_classifier(
    without_chandas, tmp_path, monkeypatch
):
    (tmp_path / "chandas.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    reward = registry.create("chandas_meter")
    assert reward(["GG\nL", "G", "LL", ""]) == [1.0, 0.5, 0.0, 0.0]
    assert registry.create("chandas_meter", meter="sragdhara")(["GG\nL"]) == [0.0]


def test_the_chandas_meter_reward_without_its_package_logs_the_reason_for_zero_scores(
    without_chandas, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "chandas", None)
    assert registry.create("chandas_meter")(["a", "b"]) == [0.0, 0.0]
    assert "chandas does not load" in caplog.text
