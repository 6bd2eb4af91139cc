"""Large binary groups in pieces: each member from the file, and a file of them."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.wire import binary_pieces
from atroposlib.wire.binary import pack_group, unpack_group
from atroposlib.wire.binary_pieces import BinaryGroup, Taken, file_of
from tests.wire.records import GROUP

ODD = {"distill_token_ids": [[[1, 2], [], [3]], [[4], [5, 6]]]}
EVEN = {"distill_token_ids": [[[1, 2]] * 3, [[3, 4]] * 2]}


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("more", [{}, ODD, EVEN, {"advantages": [[1e300] * 3, [0.0] * 2]}])
def test_a_file_in_pieces_holds_the_group(monkeypatch, compress, more):
    monkeypatch.setattr(binary_pieces, "CHUNK_BYTES", 8)
    packed = pack_group(GROUP | more, compress=compress)
    size, pieces = file_of(BinaryGroup(packed))
    file = b"".join(pieces)
    assert len(file) == size
    assert unpack_group(file) == unpack_group(packed)


def test_numbers_are_taken_across_chunks():
    taken = Taken(iter([np.array([1, 2]), np.array([3]), np.array([4, 5, 6])]))
    assert [taken(n).tolist() for n in (0, 1, 4, 1)] == [[], [1], [2, 3, 4, 5], [6]]
