"""Every architecture has the logprobs of a plain forward, and is run as in the guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainer.architectures import TOLERANCE, measure, table
from tests.trainer.families import FAMILIES


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.name, marks=[pytest.mark.slow] * family.slow)
        for family in FAMILIES
    ],
)
def test_logprobs_are_those_of_one_plain_forward_per_row(family, tmp_path):
    found = measure(family, tmp_path)
    assert found.how == family.how, found.sentence
    assert found.largest < TOLERANCE


def test_the_guide_has_the_list_of_the_families():
    guide = (Path(__file__).parents[2] / "docs/trainer.md").read_text()

    def without_figures(text):
        return " ".join(re.sub(r"\d+e-\d+", "", text).split())

    assert without_figures(table({})) in without_figures(guide)
