"""docs/reliability.md: each promise names its campaigns, and each campaign has a section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.torture.campaigns import CAMPAIGNS

PROMISES = 10


@pytest.fixture(scope="module")
def sections(root: Path) -> dict[str, str]:
    """Title to text of the sections of both levels."""
    page = (root / "docs/reliability.md").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:])
    return {title: text for title, _, text in parts}


def test_each_promise_has_a_section_with_its_campaigns(sections):
    promises = [title for title in sections if re.match(r"\d+\. ", title)]
    assert [int(title.split(".")[0]) for title in promises] == [*range(1, PROMISES + 1)]
    for title in promises:
        tested = sections[title].partition("Tested by ")[2]
        assert set(re.findall(r"\[([\w-]+)\]\(#\1\)", tested)), title


def test_each_campaign_has_a_section_with_its_sizes(sections):
    for name in CAMPAIGNS:
        text = sections[name.partition("-")[0] if name.startswith("model-") else name]
        assert "`make campaign`" in text or "Both sizes" in text, name


def test_each_campaign_is_named_by_a_promise_or_as_a_control(sections):
    named = {name for text in sections.values() for name in re.findall(r"\(#([\w-]+)\)", text)}
    known = {name.partition("-")[0] if "model-" in name else name for name in CAMPAIGNS}
    assert known - named - {"healthy"} == set()
