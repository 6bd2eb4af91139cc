"""Journal of an environment over several lives: samples used, dropped and posted once."""

from __future__ import annotations

import pytest

from atroposlib.envs.journal.journal_records import DataPlace
from atroposlib.envs.journal.sample_journal import SampleJournal, rollout_here
from atroposlib.wire.status import drop_state

MB = 2**20


class NumberForm:
    """Samples that are (number, version); negative numbers have no score."""

    def pack_sample(self, value, nodes):
        return None if value[0] < 0 else b"%d %d" % value

    def unpack_sample(self, data):
        return tuple(map(int, data.split()))

    def versions(self, value):
        return [value[1]]


FORM = NumberForm()


@pytest.fixture
def life(tmp_path):
    """Begins a life of the environment; the life before it is closed, as the system does."""
    lives = []

    def begin(run_id="run", **settings):
        if lives:
            lives[-1].close(delete=False)
        journal = SampleJournal("math", **settings)
        lives.append(journal)
        return journal, journal.start(tmp_path, run_id, MB)

    yield begin
    lives[-1].close(delete=True)
    assert list(tmp_path.iterdir()) == []


async def draw(journal, name, *values):
    """Samples of the rollout; without values, one of an earlier life or (99, 0)."""
    journal.enter(name, None)

    async def drawn(value):
        return value

    return [
        await journal.kept_or_drawn(lambda value=value: drawn(value), FORM)
        for value in values or [(99, 0)]
    ]


async def test_only_missing_samples_are_drawn_by_the_next_life(life):
    journal, left = life()
    assert (left.samples, left.items, left.groups) == (0, [], [])
    journal.begin("a", {"id": 1})
    await draw(journal, "a", (1, 0), (-2, 0), (3, 0))
    journal, left = life()
    assert left.samples == 2
    assert left.items == [("a", {"id": 1})]
    journal.begin("a", {"id": 1})
    assert await draw(journal, "a", (7, 0), (8, 0), (9, 0)) == [(1, 0), (3, 0), (9, 0)]
    assert journal.figures()["journal_used_samples"] == 2
    journal, left = life()
    assert left.samples == 3
    journal.begin("a", {"id": 1})
    journal.end("a")
    _, left = life()
    assert (left.samples, left.items) == (0, [])


async def test_keys_of_a_rollout_are_the_same_in_each_life(life):
    keys = []
    for _ in range(2):
        journal, _ = life()
        journal.begin("a", "item")
        journal.enter("a", None)
        keys.append([rollout_here().next_key(), rollout_here().next_key()])
    assert keys == [["a-0", "a-1"]] * 2


async def test_samples_that_are_too_stale_are_dropped_and_counted(life):
    journal, _ = life()
    journal.begin("a", "item")
    await draw(journal, "a", (1, 3), (2, 5))
    journal, _ = life(is_stale=lambda version: version < 4)
    journal.begin("a", "item")
    assert await draw(journal, "a", (9, 9), (8, 9)) == [(2, 5), (8, 9)]
    assert journal.figures()["journal_dropped_stale"] == 1


async def test_the_tokens_of_a_used_or_dropped_sample_count_once_in_the_account(life):
    journal, _ = life()
    journal.begin("a", "item")
    with journal.account.rollout(drop_state("test")) as tally:
        tally.add(7, 3)
        await draw(journal, "a", (1, 3), (2, 5))
    journal, _ = life(is_stale=lambda version: version < 4)
    journal.begin("a", "item")
    with journal.account.rollout(drop_state("test")):
        await draw(journal, "a")
    tokens = {key: count.tokens for key, count in journal.account.counts().items()}
    assert tokens == {
        (3, "recovered"): 7,
        (3, "dropped/journal_stale"): 7,
        (5, "recovered"): 7,
        (5, "dropped/test"): 7,
    }


async def test_samples_of_another_run_are_dropped_and_counted(life):
    journal, _ = life()
    journal.begin("a", "item")
    await draw(journal, "a", (1, 0))
    journal, left = life(run_id="another")
    assert (left.samples, left.items) == (0, [])
    assert journal.figures()["journal_dropped_run_ended"] == 1


async def test_samples_of_a_changed_task_are_dropped_and_counted(life):
    place_of = {"place_of": lambda item: item["place"]}
    journal, _ = life(**place_of)
    journal.begin("a", {"task": "2+2", "place": 0})
    await draw(journal, "a", (1, 0))
    journal, left = life(**place_of)
    assert left.place == DataPlace(1, [0])
    assert journal.name_of({"task": "2+3", "place": 0}) is None
    assert journal.figures()["journal_dropped_task_changed"] == 1


async def test_the_position_counts_what_is_under_way_and_what_was_posted(life):
    place_of = {"place_of": lambda item: item["place"]}
    journal, _ = life(**place_of)
    journal.note_place(10, [4])
    for place in (10, 11, 12):
        journal.begin(f"{place}", {"task": "t", "place": place})
    journal.end("11")
    journal.enter("12", None)
    await journal.before_post(lambda: [b"group"])
    journal, left = life(**place_of)
    assert left.place == DataPlace(13, [4, 10])  # 12 is posted first
    assert left.groups == [("12", [b"group"])]
    _, left = life(**place_of)
    assert left.groups == [("12", [b"group"])]  # the post did not end


async def test_an_item_that_the_second_life_ends_is_not_open_in_the_third(life):
    place_of = {"place_of": lambda item: item["place"]}
    item = {"task": "t", "place": 0}
    journal, _ = life(**place_of)
    journal.begin("a", item)
    journal, left = life(**place_of)
    journal.note_place(left.place.next_place, left.place.open_places)
    journal.begin(journal.name_of(item), item)
    journal.end("a")
    _, left = life(**place_of)
    assert left.place == DataPlace(1, [])


async def test_groups_whose_samples_are_kept_are_not_kept_twice(life):
    journal, _ = life()
    journal.begin("a", "item")
    await draw(journal, "a", (1, 0))
    await journal.before_post(lambda: pytest.fail("the samples are kept"))
    _, left = life()
    assert (left.samples, left.groups) == (1, [])


async def test_an_item_that_was_requeued_is_not_taken_from_the_data_again(life):
    journal, _ = life()
    journal.begin("a", ("q", 1))
    journal, left = life()
    assert left.items == [("a", ("q", 1))]
    assert journal.is_repetition(("q", 1))
    assert not journal.is_repetition(("q", 1))
    assert not journal.is_repetition(("q", 2))


async def test_items_of_the_backlog_are_rolled_out_once_by_the_next_life(life):
    journal, _ = life()
    journal.begin("a", "question")
    items = [("harder", 1), ("harder", 2)]
    assert journal.keep_backlog("a", items) == items
    journal.end("a")
    first = journal.name_of(("harder", 1))
    journal.begin(first, ("harder", 1))
    journal.end(first)
    _, left = life()
    assert [item for _, item in left.items] == [("harder", 2)]


async def test_a_parent_that_is_repeated_adds_to_the_backlog_once(life):
    journal, _ = life()
    journal.begin("a", "question")
    journal.keep_backlog("a", ["harder"])
    journal, left = life()  # the groups of the parent were not posted
    assert [item for _, item in left.items] == ["question", "harder"]
    journal.begin("a", "question")
    assert journal.keep_backlog("a", ["harder"]) == []


async def test_samples_of_a_failed_attempt_are_dropped_and_counted(life):
    journal, _ = life()
    journal.begin("a", "item")
    await draw(journal, "a", (1, 0))
    journal.repeat("a")
    assert journal.figures()["journal_dropped_attempt_failed"] == 1
    _, left = life()
    assert left.samples == 0


async def test_the_next_attempt_after_a_lost_server_draws_only_what_is_missing(life):
    journal, _ = life()
    journal.begin("a", "item")
    await draw(journal, "a", (1, 0), (2, 0))
    journal.go_on("a")
    assert await draw(journal, "a", (8, 0), (8, 0), (3, 0)) == [(1, 0), (2, 0), (3, 0)]
    journal.go_on("a")  # lost once more
    assert await draw(journal, "a", *[(8, 0)] * 3) == [(1, 0), (2, 0), (3, 0)]
    _, left = life()
    assert left.samples == 3


async def test_an_item_without_a_stored_form_is_continued_when_it_comes_again(life):
    item = {"id": 7, "tools": [len]}
    journal, _ = life()
    journal.begin("a", item)
    await draw(journal, "a", (1, 0))
    journal, left = life()
    assert left.items == []
    assert journal.name_of(item) == "a"
    journal.begin("a", item)
    assert await draw(journal, "a") == [(1, 0)]


async def test_items_of_a_class_that_share_a_field_named_task_are_not_taken_for_each_other(
    life,
):
    first, second = {"task": "sort", "list": "ba"}, {"task": "sort", "list": "dc"}
    journal, _ = life()
    journal.begin("r1", first)
    await draw(journal, "r1", (1, 0))
    again, left = life()
    assert left.items == [("r1", first)]
    assert not again.is_repetition(second) and again.name_of(second) is None
    again.begin("r2", second)
    assert await draw(again, "r2") == [(99, 0)]
    assert again.is_repetition(first) and again.name_of(first) == "r1"
    again.begin("r1", first)
    assert await draw(again, "r1") == [(1, 0)]
    for name in ("r1", "r2"):
        again.end(name)


@pytest.mark.parametrize(
    "other", ["math_easy", "math easy", "math/easy", "math", "math-easy-1"]
)
async def test_a_journal_is_taken_by_its_own_environment_alone(tmp_path, other):
    journal = SampleJournal("math-easy")
    journal.start(tmp_path, "run", MB)
    journal.begin("r1", "a")
    await draw(journal, "r1", (1, 0))
    journal.close(delete=False)
    foreign = SampleJournal(other)
    assert foreign.start(tmp_path, "run", MB).samples == 0
    own = SampleJournal("math-easy")
    assert own.start(tmp_path, "run", MB).samples == 1
    for life in (foreign, own):
        life.close(delete=True)


async def test_without_a_file_samples_are_drawn_and_nothing_is_kept():
    journal = SampleJournal("math")
    journal.begin("a", "item")
    assert await draw(journal, "a", (1, 0)) == [(1, 0)]
    journal.end("a")
    await journal.before_post(lambda: pytest.fail("nothing is kept"))
    assert rollout_here() is None
