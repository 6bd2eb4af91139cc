"""The zoo: every defect is found, and no sound environment fails or warns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from atroposlib.cli.env_validate import validate
from atroposlib.validation import validate as validation
from atroposlib.validation.report import Verdict
from tests.validation import zoo_broken, zoo_classes, zoo_sound

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("zoo_broken", "zoo_classes", "zoo_sound"):
        loaded = sys.modules.pop(name, None)
        if hasattr(loaded, "release"):
            loaded.release()


@pytest.fixture
def one_process(monkeypatch):
    """Called for a defect that shows without the second process, whose start takes as long."""

    async def no_differences(command, subject, judge_calls):
        return ()

    return lambda: monkeypatch.setattr(validation, "compared", no_differences)


@pytest.mark.parametrize("name", zoo_broken.FINDS)
async def test_the_defect_of_a_broken_environment_is_found(name, one_process):
    if zoo_broken.FINDS[name] != "score.repeat":
        one_process()
    report = await validate(f"{HERE}/zoo_broken.py:{name}")
    assert zoo_broken.FINDS[name] in report.flagged(), report.table()


@pytest.mark.parametrize("name", zoo_sound.SOUND)
async def test_a_sound_environment_passes_without_a_warning(name):
    report = await validate(f"{HERE}/zoo_sound.py:{name}")
    assert report.flagged() == [], report.table()


@pytest.mark.parametrize("name", zoo_classes.FINDS)
async def test_the_defect_of_a_broken_class_is_found(name, one_process):
    if zoo_classes.FINDS[name] != "score.repeat":
        one_process()
    report = await validate(f"{HERE}/zoo_classes.py:{name}")
    assert zoo_classes.FINDS[name] in report.flagged(), report.table()


@pytest.mark.parametrize("name", zoo_classes.SOUND)
async def test_a_sound_class_passes_and_what_does_not_apply_is_skipped_with_a_reason(name):
    report = await validate(f"{HERE}/zoo_classes.py:{name}")
    assert report.flagged() == [], report.table()
    left_out = {one.check: one.text for one in report.findings if one.verdict is Verdict.SKIP}
    assert {"data.split", "tools.match"} <= left_out.keys() and all(left_out.values())


async def test_a_class_without_a_card_is_checked_without_its_scores():
    report = await validate(f"{HERE}/zoo_classes.py:WithoutACard")
    assert report.flagged() == ["gold.passes"] and report.passed(), report.table()
    verdicts = {one.check: one for one in report.findings}
    assert verdicts["swap.fails"].verdict is Verdict.SKIP
    assert verdicts["null.fails"].verdict is Verdict.SKIP  # no group of equal scores


def test_the_zoo_has_a_defect_for_nearly_every_check():
    from atroposlib.validation.bounds import DEFAULTS

    untested = set(DEFAULTS) - {*zoo_broken.FINDS.values(), *zoo_classes.FINDS.values()}
    assert untested == {"signal", "tokens"}  # these need a model
    assert len(zoo_broken.FINDS) >= 30 and len(zoo_sound.SOUND) >= 15
