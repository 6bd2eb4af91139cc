"""Tests of the mapping of AReaL's option names."""

from __future__ import annotations

from example_trainer.settings.areal import names as areal_names
from example_trainer.settings.areal.names import Renamed
from example_trainer.settings.files import FIELDS, parse_override, translate


def test_every_areal_name_maps_to_an_existing_setting():
    for name, meaning in areal_names.NAMES.items():
        if isinstance(meaning, Renamed):
            assert meaning.field in FIELDS, name


def test_ignored_options_are_noted_once_per_reason():
    words = [
        "sglang.tp_size=2",
        "sglang.dtype=x",
        "gconfig.temperature=1",
        "gconfig.top_p=null",
    ]
    notes = translate([parse_override(word) for word in words]).notes
    assert [note.split(":")[0] for note in notes] == [
        "sglang.tp_size, sglang.dtype",
        "gconfig.temperature",
    ]
