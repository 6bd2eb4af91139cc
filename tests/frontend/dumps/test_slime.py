"""Rollout files of slime and miles, which torch writes."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.frontend.dumps import read_dump
from tests.frontend.dumps import records

# record, format, roles, score, tokens with masks, logprobs of trained tokens, missing parts


def test_a_torch_file_of_plain_values_is_read_and_of_objects_refused(tmp_path):
    torch = pytest.importorskip("torch")
    plain, objects = tmp_path / "data_4.pt", tmp_path / "data_5.pt"
    torch.save({"rollout_id": 4, "samples": [records.SLIME]}, plain)
    dump = read_dump(plain)
    assert dump.groups[0]["metadata"]["step"] == 4
    torch.save({"rollout_id": 5, "samples": [pytest.importorskip]}, objects)
    with pytest.raises(ConfigError, match="may run code"):
        read_dump(objects)
