"""Tasks of a function environment: order, passes, the held-out part, and the saved position."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.data import (
    Cursor,
    Indexed,
    Stream,
    eval_rows,
    item_of,
    prepare_tasks,
    split_held_out,
    task_id,
)
from atroposlib.errors import ConfigError, DatasetUnavailable, RolloutError

ROWS = [{"id": f"task-{i}"} for i in range(20)]


def settings(**changes):
    return FunctionEnvConfig(use_wandb=False, **{"eval_fraction": 0.0, **changes})


async def cursor_over(dataset, **changes):
    source, _ = await prepare_tasks(dataset, None, settings(**changes), env="toy")
    return Cursor(source)


def ids(cursor, count):
    items = (cursor.next() for _ in range(count))
    return [item and item["id"] for item in items]


async def test_every_pass_has_each_task_once_in_an_order_derived_from_the_seed():
    first = ids(cursor := await cursor_over(ROWS), 20)
    second = ids(cursor, 20)
    assert sorted(first) == sorted(second) == sorted(row["id"] for row in ROWS)
    assert first != second != [row["id"] for row in ROWS]
    assert ids(await cursor_over(ROWS), 20) == first
    assert ids(await cursor_over(ROWS, seed=1), 20) != first
    assert ids(await cursor_over(ROWS, shuffle=False), 3) == ["task-0", "task-1", "task-2"]


async def test_the_number_of_passes_is_bounded_by_epochs():
    cursor = await cursor_over(ROWS[:2], epochs=2)
    assert [item and item["epoch"] for item in (cursor.next() for _ in range(5))] == [
        0,
        0,
        1,
        1,
        None,
    ]


async def test_endless_generators_are_accepted_and_keep_their_order():
    cursor = await cursor_over({"id": i} for i in itertools.count())
    assert ids(cursor, 3) == ["0", "1", "2"]
    ending = await cursor_over(iter(ROWS[:2]))
    assert ids(ending, 4) == ["task-0", "task-1", None, None]


class Table:
    """Rows by index only, as in tables on disk."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return ROWS[i]


async def test_a_table_is_shuffled_and_split_like_a_list():
    _, held_out = await prepare_tasks(Table(), None, settings(eval_fraction=0.5), env="toy")
    assert 0 < len(held_out) < 3
    assert sorted(ids(await cursor_over(Table()), 3)) == ["task-0", "task-1", "task-2"]


async def test_an_eval_data_set_of_none_leaves_a_share_of_the_data_for_evaluation():
    _, held_out = await prepare_tasks(
        ROWS, lambda: None, settings(eval_fraction=0.25), env="toy"
    )
    assert (
        held_out
        == (await prepare_tasks(ROWS, None, settings(eval_fraction=0.25), env="toy"))[1]
    )
    with pytest.raises(ConfigError, match="not NoneType"):
        await prepare_tasks(lambda: None, None, settings(), env="toy")


class Restarting:
    def __iter__(self):
        return iter(ROWS[:2])


async def test_a_restartable_iterable_has_several_passes():
    assert ids(await cursor_over(Restarting(), epochs=2), 5) == [
        "task-0",
        "task-1",
        "task-0",
        "task-1",
        None,
    ]
    assert ids(await cursor_over(Restarting()), 5)[4] == "task-0"


def generator(config):
    yield {"id": f"seed {config.seed}"}


async def slow_list():
    return ROWS[:1]


@pytest.mark.parametrize(
    ("dataset", "first"),
    [(generator, "seed 0"), (slow_list, "task-0"), (lambda: ROWS[:1], "task-0")],
)
async def test_callables_are_called_in_setup_with_the_config_if_they_take_it(dataset, first):
    assert ids(await cursor_over(dataset), 1) == [first]


async def test_files_are_read_and_a_missing_one_is_a_clear_error(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]))
    assert sorted(ids(await cursor_over(path), 3)) == ["task-0", "task-1", "task-2"]
    assert sorted(ids(await cursor_over(str(path)), 3)) == ["task-0", "task-1", "task-2"]
    with pytest.raises(DatasetUnavailable, match="no.jsonl"):
        await cursor_over(tmp_path / "no.jsonl")


@pytest.mark.parametrize("dataset", [{"a": 1}, 7, lambda: 7])
async def test_an_object_that_is_not_a_data_set_is_rejected(dataset):
    with pytest.raises(ConfigError, match="toy: a data set is a list"):
        await cursor_over(dataset)


async def test_a_failing_callable_names_the_environment():
    def broken():
        raise ValueError("bad login")

    with pytest.raises(
        RolloutError,
        match=r"test_data.py:\d+: ValueError: bad login.*toy: loading the train data",
    ):
        await cursor_over(broken)
    with pytest.raises(ConfigError, match="toy: the data set is empty"):
        await cursor_over([])


def test_a_task_id_is_given_or_a_short_text_or_a_hash_of_the_content():
    assert task_id({"id": 7}) == "7"
    assert task_id({"a": 1, "b": [2]}) == task_id({"b": [2], "a": 1})
    assert task_id({"a": 1}) != task_id({"a": 2})
    assert task_id("abcd") == "abcd"
    assert len(task_id("a long text " * 10)) == 16


@given(st.lists(st.integers(), unique=True, min_size=2), st.integers(), st.floats(0.01, 0.9))
def test_a_task_stays_in_its_split_when_tasks_are_added(rows, more, fraction):
    train, apart = split_held_out(rows, fraction)
    assert sorted(train + apart) == list(range(len(rows)))
    assert train and apart
    if more not in rows and len(apart) > 1 and len(train) > 1:
        _, later = split_held_out([more, *rows], fraction)
        assert {rows[i] for i in apart} <= {[more, *rows][i] for i in later}


async def test_held_out_tasks_are_not_used_for_training():
    source, held_out = await prepare_tasks(ROWS, None, settings(eval_fraction=0.25), env="toy")
    apart = {item["id"] for item in held_out}
    assert 0 < len(apart) < 20
    assert apart.isdisjoint(ids(Cursor(source), 60))


async def test_an_eval_data_set_leaves_the_whole_data_set_for_training():
    evaluated = [{"id": "other"}] * 3
    source, held_out = await prepare_tasks(
        ROWS, evaluated, settings(eval_fraction=0.5, eval_items=2), env="toy"
    )
    assert [item["id"] for item in held_out] == ["other", "other"]
    assert len(set(ids(Cursor(source), 20))) == 20


def test_an_endless_eval_data_set_needs_a_number():
    assert eval_rows(itertools.count(), 3) == [0, 1, 2]
    with pytest.raises(ConfigError, match="eval_items"):
        eval_rows(itertools.count(), -1)


def indexed():
    return Indexed(ROWS, range(20), seed=3, shuffle=True, epochs=-1)


def streamed():
    return Stream(Restarting(), epochs=-1)


@given(st.data())
def test_a_restart_repeats_tasks_in_flight_and_then_continues(data):
    make = data.draw(st.sampled_from([indexed, streamed]))
    count = data.draw(st.integers(0, 30))
    cursor = Cursor(make())
    handed_out = [cursor.next() for _ in range(count)]
    finished = data.draw(st.sets(st.sampled_from(range(count)))) if count else set()
    for i in finished:
        cursor.done(handed_out[i])
    state = json.loads(json.dumps(cursor.state()))
    resumed = Cursor(make())
    resumed.seek(state)
    again = [resumed.next() for _ in range(count - len(finished))]
    assert again == [item for item in handed_out if item["place"] not in finished]
    assert resumed.next() == cursor.next()
    assert resumed.state()["open"] == cursor.state()["open"]


TWINS = [
    ({"id": 0, "q": "easy"}, {"id": 0, "q": "hard"}),
    ({"id": 1, "q": "easy"}, {"id": "1", "q": "hard"}),
    ({"id": "train/7", "q": "easy"}, {"id": "train/7", "q": "easy", "hint": "x"}),
    ({"id": 2.0, "q": [1]}, {"id": "2.0", "q": [2]}),
    ({"id": "", "q": "easy"}, {"id": "", "q": "hard"}),
]


@pytest.mark.parametrize(("a", "b"), TWINS)
async def test_two_tasks_of_one_id_are_refused_with_both_rows(a, b):
    rows = [*ROWS, a, b]
    with pytest.raises(ConfigError, match="rows 20 and 21 are different tasks") as raised:
        await prepare_tasks(rows, None, settings(), env="toy")
    assert repr(a["q"]) in str(raised.value) and repr(b["q"]) in str(raised.value)
    with pytest.raises(ConfigError, match="tasks of the evaluation"):
        await prepare_tasks(ROWS, [a, b], settings(), env="toy")
    await prepare_tasks([a, a, *ROWS], [b, b], settings(), env="toy")  # equal tasks may


@pytest.mark.parametrize(("a", "b"), TWINS)
async def test_two_tasks_of_one_id_in_a_stream_are_two_groups(a, b):
    first, second = ids(await cursor_over(iter([a, b])), 2)
    assert first != second
    assert item_of(a, 0)["id"] == first == item_of(a, 5)["id"]  # stable across runs
    assert item_of(a, 0, is_unique=True)["id"] == str(a["id"])
