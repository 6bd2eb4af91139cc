"""The safetensors format: the documented layout, and files of the safetensors library."""

from __future__ import annotations

import msgspec
import numpy as np
import safetensors.numpy

from atroposlib.wire.binary import pack_group, unpack_group
from tests.wire.records import GROUP


def test_the_layout_is_as_documented_and_the_library_reads_it():
    arrays = safetensors.numpy.load(pack_group(GROUP, compress=False))
    assert {name: (one.dtype.str, one.tolist()) for name, one in arrays.items()} == {
        "tokens": ("<i4", [1, 5, 9, 2, 7]),
        "seq_lens": ("<i4", [3, 2]),
        "mask": ("|u1", [0, 0, 1, 0, 1]),
        "scores": ("<f8", [0.1, -1.0]),
        "inference_logprobs": ("<f4", [1.0, 1.0, -0.5, 1.0, -0.25]),
        "versions": ("<i4", [-1, -1, 3, -1, 4]),
        "rest": ("|u1", list(b'{"messages":' + msgspec.json.encode(GROUP["messages"]) + b"}")),
    }


def test_a_file_written_by_the_library_is_read():
    data = safetensors.numpy.save(
        {
            "tokens": np.array([4, 5, 6], np.int32),
            "seq_lens": np.array([1, 2], np.int32),
            "mask": np.array([0, 1, 1], np.uint8),
            "scores": np.array([1.0, 0.5], np.float16),
            "distill_token_ids": np.array([[1, 2], [3, 4], [5, 6]], np.int32),
        },
        metadata={"env_id": "7"},
    )
    group = unpack_group(data)
    assert (group.tokens, group.masks) == ([[4], [5, 6]], [[-100], [5, 6]])
    assert (group.scores, group.env_id, group.group_id) == ([1.0, 0.5], 7, None)
    assert group.distill_token_ids == [[[1, 2]], [[3, 4], [5, 6]]]
