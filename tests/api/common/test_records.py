"""Digests and derived counts of the records."""

from __future__ import annotations

from atroposlib.api.common.records import (
    BatchMember,
    GroupCount,
    GroupState,
    LeasedBatch,
    digest_of,
)


def test_a_digest_is_the_published_xxh3_of_the_payload():
    # The test vector of the empty input in the xxHash specification.
    assert digest_of(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert digest_of(b"a") != digest_of(b"b") and len(digest_of(b"a")) == 16


def test_a_batch_lists_its_groups_and_counts_sequences():
    members = (BatchMember(3, None, 2, 9), BatchMember(5, None, 4, 9))
    batch = LeasedBatch(no=1, epoch=1, generation=1, members=members)
    assert (batch.gids, batch.n_seq) == ((3, 5), 6)
    assert GroupCount(GroupState.PENDING, None, 4, 3).sequences == 12
