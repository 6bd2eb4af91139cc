"""Stored samples: what is read back trains and is sealed as what was drawn."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.envs.journal.stored_samples import (
    RowForm,
    encode_value,
    oldest_sampled_version,
)
from atroposlib.envs.rollout.groups import collate, from_node
from atroposlib.generation.sessions.recording import recorded_nodes
from atroposlib.generation.sessions.sequences import SequenceNode

SPAN = {"start": 1, "end": 3, "temperature": 1.0, "seal": "n.t.l.v.s"}
NODE = SequenceNode(
    full_text="ab",
    tokens=[1, 5, 9],
    masked_tokens=[-100, 5, 9],
    logprobs=[1.0, -0.25, -0.5],
    versions=[-1, 3, 4],
    spans=[SPAN],
    metadata={"finish_reason": "stop"},
)
ROW = from_node(NODE, 0.75, metrics={"exact": 1.0})
FORM = RowForm()


def test_a_row_is_read_as_it_was_stored():
    data = FORM.pack_sample((ROW, [("next", 1)]), [])
    row, backlog = FORM.unpack_sample(data)
    assert row == ROW
    assert backlog == [("next", 1)]
    assert collate([row, ROW]) == collate([ROW, ROW])


def test_a_row_of_arrays_is_stored_as_numbers():
    row = {"tokens": np.array([1, 5]), "masks": np.array([-100, 5]), "scores": np.float32(0.5)}
    stored, _ = FORM.unpack_sample(FORM.pack_sample((row, []), []))
    assert stored == {"tokens": [1, 5], "masks": [-100, 5], "scores": 0.5}


def test_the_nodes_of_a_row_without_sampling_are_recorded_again():
    row = {"tokens": NODE.tokens, "masks": NODE.masked_tokens, "scores": 1.0}
    data = FORM.pack_sample((row, []), [NODE])
    with recorded_nodes() as nodes:
        FORM.unpack_sample(data)
    assert nodes == [NODE]


@pytest.mark.parametrize(
    "row", [None, {**ROW, "scores": None}, {**ROW, "scores": float("nan")}]
)
def test_a_sample_without_a_score_is_not_finished(row):
    assert FORM.pack_sample((row, []), []) is None


def test_what_has_no_stored_form_is_refused():
    with pytest.raises(TypeError, match="object has no stored form"):
        encode_value({"metadata": object()})
    with pytest.raises(TypeError, match="backlog"):
        FORM.pack_sample((ROW, [object()]), [])


def test_the_oldest_version_is_that_of_a_sampled_token():
    assert oldest_sampled_version(FORM.versions((ROW, []))) == 3
    assert oldest_sampled_version(FORM.versions(({**ROW, "versions": None}, []))) is None
    assert oldest_sampled_version([-1, -1]) is None
