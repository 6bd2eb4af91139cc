"""Retention rule: tables of segments and the plan for them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from atroposlib.api.store.sqlite.retention import Segment, SegmentPlan, plan, tolerated_bytes

SIZE, PLENTY = 100, 10**6


def planned(*segments, spare=PLENTY, **more):
    """Segments as (bytes on disk, live bytes); numbers from 1, the last is active."""
    made = [Segment(no, *sizes) for no, sizes in enumerate(segments, 1)]
    return plan(made, SIZE, spare, **more)


def test_sealed_segments_without_live_payloads_are_freed():
    assert planned((100, 0), (100, 1), (100, 0), (50, 0)) == SegmentPlan(free=(1, 3))


def test_the_active_segment_is_sealed_at_its_size_and_freed_later():
    assert planned((99, 0)) == SegmentPlan()
    assert planned((100, 0)) == SegmentPlan(seal=True)


def test_a_queue_that_drains_in_order_moves_nothing():
    assert planned((100, 3), (100, 100), (100, 100), (20, 20)).move is None


def test_one_live_payload_does_not_hold_a_segment_back_once_others_are_retired():
    assert planned((100, 3), (100, 1), (100, 2), (10, 10)).move == 2


def test_retired_bytes_of_a_quarter_of_a_long_queue_are_tolerated():
    full = [(100, 100)] * 12
    assert planned((100, 10), (100, 20), (100, 30), *full, (0, 0)).move is None
    assert planned((100, 10), (100, 20), (100, 30), (100, 5), *full, (0, 0)).move == 4


def test_a_segment_that_cannot_be_read_is_not_moved():
    assert planned((100, 1), (100, 3), (100, 2), (10, 10), fixed={1}).move == 3


def test_on_a_nearly_full_disk_the_active_segment_is_sealed_and_its_payloads_are_moved():
    assert planned((50, 40), spare=90) == SegmentPlan(seal=True)
    assert planned((50, 40), (0, 0), spare=90) == SegmentPlan(move=1)
    assert planned((50, 45), (0, 0), spare=90) == SegmentPlan()  # too little is retired


def test_a_move_needs_room_for_its_copies():
    assert planned((50, 40), (0, 0), spare=39).move is None
    assert planned((50, 6), (0, 0), spare=0).move == 1


def test_an_archive_keeps_retired_segments_and_frees_the_oldest_beyond_its_bound():
    retired = ((100, 0), (100, 0), (100, 0), (50, 50))
    assert planned(*retired, archive_bytes=300) == SegmentPlan()
    assert planned(*retired, archive_bytes=299) == SegmentPlan(free=(1,))
    assert planned((100, 3), *retired, archive_bytes=200) == SegmentPlan(free=(2, 3))


def test_an_archive_gives_way_to_the_queue_on_a_full_disk_as_far_as_needed():
    retired = ((100, 0), (100, 0), (100, 0), (0, 0))
    assert planned(*retired, spare=99, archive_bytes=PLENTY) == SegmentPlan(free=(1,))
    assert planned(*retired, spare=-50, archive_bytes=PLENTY).free == (1, 2)


def test_pinned_segments_are_neither_freed_nor_moved():
    segments = [Segment(1, 100, 0, pinned=True), Segment(2, 100, 0), Segment(3, 0, 0)]
    assert plan(segments, SIZE, 0, archive_bytes=10).free == (2,)
    held = [Segment(1, 100, 5, pinned=True), Segment(2, 0, 0)]
    assert plan(held, SIZE, 50, archive_bytes=10).move is None


def test_an_archive_delays_moves_until_its_bound():
    segments = ((100, 3), (100, 1), (100, 2), (10, 10))
    assert planned(*segments, archive_bytes=100).move is None
    assert planned(*segments, archive_bytes=93).move == 2


@given(
    st.lists(st.integers(0, 150).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))),
)
def test_above_the_tolerated_bytes_there_is_always_something_to_move(sizes):
    live = sum(one for _, one in sizes)
    retired = sum(n for n, one in sizes if one) - live
    what = planned(*sizes, (0, 0))
    assert (what.move is not None) == (retired > tolerated_bytes(live, SIZE))
