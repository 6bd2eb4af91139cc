"""State of a journal: what is left to do after records, merges and a copy of what is kept."""

from __future__ import annotations

from hypothesis import given, strategies as st

from atroposlib.envs.journal.journal_records import (
    DataPlace,
    GroupsFinished,
    RolloutBegun,
    RolloutEnded,
    RolloutRepeated,
    RunStarted,
    SampleFinished,
)
from atroposlib.envs.journal.journal_state import merge_journals, state_after
from tests.examples import examples


def begun(name, place=None):
    return RolloutBegun(name, f"task of {name}", place)


def test_an_ended_rollout_leaves_nothing_and_its_place_is_closed():
    state = state_after(
        [
            RunStarted("r"),
            begun("a", 0),
            begun("b", 1),
            SampleFinished("a", b"1"),
            RolloutEnded("a"),
        ]
    )
    assert list(state.open) == ["b"]
    assert state.places.record() == DataPlace(2, [1])


def test_a_rollout_that_began_before_a_recorded_position_closes_its_place():
    state = state_after([begun("a", 3), DataPlace(5, [3, 4]), RolloutEnded("a")])
    assert state.places.record() == DataPlace(5, [4])


def test_samples_of_a_repeated_rollout_are_not_used():
    state = state_after(
        [
            begun("a"),
            SampleFinished("a", b"1"),
            RolloutRepeated("a"),
            SampleFinished("a", b"2"),
        ]
    )
    assert [sample.payload for sample in state.open["a"].samples] == [b"2"]


def test_another_run_leaves_no_rollout_and_keeps_the_position():
    state = state_after(
        [RunStarted("r"), begun("a", 4), RunStarted("s"), begun("b", 4), RolloutEnded("b")]
    )
    assert state.run_id == "s"
    assert not state.open
    assert state.places.record() == DataPlace(5, [])


def test_the_same_run_again_keeps_everything():
    assert list(state_after([RunStarted("r"), begun("a"), RunStarted("r")]).open) == ["a"]


def test_journals_of_a_run_are_merged_and_the_newest_has_the_word():
    new = state_after(
        [RunStarted("r"), DataPlace(9, [2]), begun("a"), SampleFinished("a", b"new")]
    )
    old = state_after([RunStarted("r"), DataPlace(5, [2, 4]), begun("a"), begun("b")])
    other = state_after([RunStarted("other"), DataPlace(99, []), begun("c")])
    both = merge_journals([new, old, other], "r")
    assert list(both.open) == ["a", "b"]
    assert [sample.payload for sample in both.open["a"].samples] == [b"new"]
    assert both.places.record() == DataPlace(9, [2])


names = st.sampled_from("abcd")
records = st.lists(
    st.builds(RunStarted, st.sampled_from("rs"))
    | st.builds(RolloutBegun, names, st.just("t"), st.none() | st.integers(0, 20))
    | st.builds(SampleFinished, names, st.binary(max_size=3))
    | st.builds(GroupsFinished, names, st.lists(st.binary(max_size=3), max_size=2))
    | st.builds(RolloutRepeated, names)
    | st.builds(RolloutEnded, names),
    max_size=30,
)


@examples(300)
@given(records, records)
def test_a_copy_of_what_is_kept_has_the_same_state_and_goes_on_as_the_original(first, then):
    state = state_after(first)
    copy = [*state.head(), *state.kept_records()]
    whole, rewritten = state_after([*first, *then]), state_after([*copy, *then])
    assert {n: e.records for n, e in whole.open.items()} == {
        n: e.records for n, e in rewritten.open.items()
    }
    assert whole.run_id == rewritten.run_id
