"""Forward passes of rows with pictures, and rows that are left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from atroposlib.errors import PictureError
from atroposlib.utils.models.vision import PictureInputs
from atroposlib.wire import ScoredData
from example_trainer.data.packing import pack_rows
from example_trainer.data.pictured import plan_pictured
from example_trainer.data.rows import to_rows
from tests.examples import examples
from tests.trainer.rows import row, scored
from tests.vision import data_url, drawing

URL = data_url(drawing("red"))


def pictured_row(completion: int, width: int):
    """A row whose pixel tensor has ``width`` columns."""
    pictures = PictureInputs(
        b"", {"pixel_values": torch.zeros(1, width)}, None, 0, frozenset()
    )
    return row([5, 6], [7] * completion, pictures=pictures)


@examples(60)
@given(
    rows=st.lists(
        st.builds(pictured_row, st.integers(1, 6), st.sampled_from([2, 3])), min_size=1
    ),
    divisor=st.integers(1, 3),
    budget=st.integers(4, 30),
)
def test_every_row_is_in_one_pass_with_rows_of_its_shape(rows, divisor, budget):
    packs = pack_rows(rows, max_tokens=budget, crossover=float("inf"), share=False)
    planned = plan_pictured(packs, rows, budget, divisor=divisor)
    assert len(planned) % divisor == 0
    assert sorted(i for batch in planned for i in batch.row_ids) == list(range(len(rows)))
    for batch in planned:
        assert batch.pictures  # a rank without rows computes the pictures of another as well
        assert len({pictures.batch_key for pictures in batch.pictures}) == 1
        assert batch.lines == len(batch.pictures)
        assert [rows[i].pictures for i in batch.row_ids] == batch.pictures[
            : len(batch.row_ids)
        ]
        assert not batch.row_ids or batch.lines == 1 or batch.computed <= budget
    scored_tokens = np.concatenate([batch.targets for batch in planned])
    assert len(scored_tokens) == sum(len(one.trained) for one in rows)


def test_a_picture_after_the_last_trained_token_keeps_its_placeholders():
    [pack] = pack_rows([pictured_row(1, 2)], max_tokens=9, crossover=1.0, share=False)
    assert len(pack.tokens) == 3
    [text] = pack_rows([row([5, 6], [7])], max_tokens=9, crossover=1.0, share=False)
    assert len(text.tokens) == 2


def group(**fields) -> ScoredData:
    return scored([[1, 2], [1, 3], [1, 4]], 1, [1.0, 0.0, 1.0], **fields)


def read(tokens, pictures):
    if not pictures:
        return None
    assert pictures == [drawing("red")]
    if tokens[-1] == 3:
        raise PictureError("1 pictures take 4 placeholder tokens")
    return PictureInputs(b"", {}, None, 0, frozenset({tokens[-1]}))


def test_rows_get_their_pictures_and_a_row_that_does_not_fit_is_named_counted_and_left_out():
    named = {"env_id": 7, "group_id": 9}
    batch = to_rows([group(images=[[URL], [URL], None], **named)], 64, read_pictures=read)
    first, text = batch.rows
    assert first.pictures.token_ids == {2} and text.pictures is None
    assert batch.counts["dropped_pictures"] == 1
    [note] = batch.notes & {note for note in batch.notes if "images" in note}
    assert "images[1] of group 7/9 of environment" in note and "4 placeholder" in note


@pytest.mark.parametrize("images", [["no base64!"] * 3, [[{"url": URL}]] * 3])
def test_an_image_that_is_no_picture_leaves_its_row_out(images):
    batch = to_rows([group(images=images)], 64, read_pictures=read)
    assert not batch.rows and batch.counts["dropped_pictures"] == 3


def test_base64_without_a_data_url_is_read_as_it_is():
    bare = URL.partition(",")[2]
    batch = to_rows([group(images=[bare, None, [bare]])], 64, read_pictures=read)
    assert [one.pictures is not None for one in batch.rows] == [True, False, True]
