"""A document of ATIF, which may span lines."""

from __future__ import annotations

import json

from atroposlib.frontend.dumps import read_dump
from tests.frontend.dumps import records

# record, format, roles, score, tokens with masks, logprobs of trained tokens, missing parts


def test_an_atif_document_may_have_several_lines(tmp_path):
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(records.ATIF, indent=2))
    assert read_dump(path).format == "ATIF trajectory"
