"""Records between peers of different age: the original's, those before ``sampling``, and ours."""

from __future__ import annotations

import base64
import json

import numpy as np
import pydantic
import safetensors.numpy

from atroposlib.api.codec import read_group
from atroposlib.api.codec.delivery import json_of
from atroposlib.wire.binary import pack_group, unpack_group

JSON, BINARY = "application/json", "application/x-safetensors"
GROUP = {
    "tokens": [[1, 5, 9], [2, 7]],
    "masks": [[-100, -100, 9], [-100, 7]],
    "scores": [0.1, -1],
    "inference_logprobs": [[1.0, 1.0, -0.5], [1.0, -0.25]],
    "versions": [[-1, -1, 3], [-1, 4]],
    "overrides": [{"temperature": 0.5}, {}],
    "finish_reasons": ["stop", "length"],
}
SPANS = [
    [{"start": 2, "end": 3, "temperature": 0.5}],
    [{"start": 1, "end": 2, "temperature": 1.0, "finish_reason": "length"}],
]
# The group as it was written before the record had ``sampling``.
WRITTEN_BEFORE = base64.b64decode(
    "4AEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJhdHJvcG9zLWdyb3VwLzEifSwic2NvcmVzIjp7"
    "ImR0eXBlIjoiRjY0Iiwic2hhcGUiOlsyXSwiZGF0YV9vZmZzZXRzIjpbMCwxNl19LCJ0b2tlbnMiOnsiZHR5"
    "cGUiOiJJMzIiLCJzaGFwZSI6WzVdLCJkYXRhX29mZnNldHMiOlsxNiwzNl19LCJzZXFfbGVucyI6eyJkdHlw"
    "ZSI6IkkzMiIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzM2LDQ0XX0sInZlcnNpb25zIjp7ImR0eXBl"
    "IjoiSTMyIiwic2hhcGUiOls1XSwiZGF0YV9vZmZzZXRzIjpbNDQsNjRdfSwiaW5mZXJlbmNlX2xvZ3Byb2Jz"
    "Ijp7ImR0eXBlIjoiRjMyIiwic2hhcGUiOls1XSwiZGF0YV9vZmZzZXRzIjpbNjQsODRdfSwibWFzayI6eyJk"
    "dHlwZSI6IlU4Iiwic2hhcGUiOls1XSwiZGF0YV9vZmZzZXRzIjpbODQsODldfSwicmVzdCI6eyJkdHlwZSI6"
    "IlU4Iiwic2hhcGUiOls3M10sImRhdGFfb2Zmc2V0cyI6Wzg5LDE2Ml19fSAgICCamZmZmZm5PwAAAAAAAPC/"
    "AQAAAAUAAAAJAAAAAgAAAAcAAAADAAAAAgAAAP//////////AwAAAP////8EAAAAAACAPwAAgD8AAAC/AACA"
    "PwAAgL4AAAEAAXsib3ZlcnJpZGVzIjpbeyJ0ZW1wZXJhdHVyZSI6MC41fSx7fV0sImZpbmlzaF9yZWFzb25z"
    "IjpbInN0b3AiLCJsZW5ndGgiXX0="
)


class OriginalRecord(pydantic.BaseModel):
    """The record as the original's API declares it; like that, it ignores other keys."""

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None = None
    ref_logprobs: list[list[float]] | None = None
    messages: list[list[dict]] | None = None
    generation_params: dict | None = None
    inference_logprobs: list[list[float]] | None = None
    overrides: list[dict] | None = None
    group_overrides: dict | None = None
    images: object = None
    env_id: int | None = None


def test_a_file_written_before_is_read_and_a_group_without_sampling_is_written_alike():
    assert unpack_group(WRITTEN_BEFORE).versions == GROUP["versions"]
    assert unpack_group(WRITTEN_BEFORE).sampling is None
    assert pack_group(GROUP, compress=False) == WRITTEN_BEFORE


def test_a_group_of_an_original_environment_arrives_with_sampling_null():
    names = OriginalRecord.model_fields.keys() & GROUP.keys()
    body = json.dumps({name: GROUP[name] for name in names}).encode()
    kept = json.loads(b"".join(json_of(read_group(body, JSON).payload)))
    assert kept["sampling"] is None and kept["versions"] is None
    assert {name: kept[name] for name in names} == {name: GROUP[name] for name in names}


def test_an_original_api_takes_a_group_with_sampling():
    taken = OriginalRecord.model_validate(GROUP | {"sampling": SPANS})
    assert taken.overrides == GROUP["overrides"]


def test_sampling_is_delivered_in_both_encodings():
    group = GROUP | {"sampling": SPANS}
    text = read_group(json.dumps(group).encode(), JSON)
    assert json.loads(b"".join(json_of(text.payload)))["sampling"] == SPANS
    assert unpack_group(text.payload).sampling == SPANS
    assert unpack_group(read_group(pack_group(group), BINARY).payload).sampling == SPANS


def test_members_of_a_newer_record_are_ignored_in_both_encodings():
    newer = {"routing": [[1]], "sampling": [[SPANS[0][0] | {"typical_p": 0.9}], []]}
    assert read_group(json.dumps(GROUP | newer).encode(), JSON).n_seq == 2
    arrays = safetensors.numpy.load(pack_group(GROUP, compress=False))
    arrays["rest"] = np.frombuffer(json.dumps(newer).encode(), np.uint8)
    assert unpack_group(safetensors.numpy.save(arrays)).sampling == [SPANS[0], []]
