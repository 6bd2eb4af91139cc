"""Tasks that a sampler chooses: places, levels, and classes with a list."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.data import Cursor, prepare_tasks
from atroposlib.envs.function_env.sampled_tasks import task_source_of
from atroposlib.errors import ConfigError

ROWS = [{"id": f"task-{i}"} for i in range(8)]


async def cursor_over(dataset, curriculum, **changes):
    settings = {"use_wandb": False, "eval_fraction": 0.0, "curriculum": curriculum, **changes}
    config = FunctionEnvConfig(**settings)
    source, _ = await prepare_tasks(dataset, None, config, env="toy")
    course = Curriculum(config, "toy")
    return Cursor(task_source_of(source, course, config.epochs)), course


async def test_uniform_leaves_the_source_as_it_is():
    cursor, course = await cursor_over(ROWS, {"gate": "band"})
    plain, _ = await cursor_over(ROWS, {})
    assert [cursor.next() for _ in range(20)] == [plain.next() for _ in range(20)]
    assert course.sampler is None


async def test_a_sampled_task_has_its_number_and_groups_of_its_own():
    cursor, _ = await cursor_over(ROWS, "pools", epochs=2)
    items = [cursor.next() for _ in range(16)]
    assert cursor.next() is None  # two passes are as many draws
    assert {(item["id"], f"task-{item['number']}") for item in items} == {
        (f"task-{n}", f"task-{n}") for n in range(8)
    }
    assert len({f"{item['id']}@{item['epoch']}" for item in items}) == 16


async def test_an_unfinished_place_gets_the_same_task_again():
    cursor, course = await cursor_over(ROWS, "pools")
    first, second = cursor.next(), cursor.next()
    cursor.done(first)
    again, other = await cursor_over(ROWS, "pools")
    other.restore_checkpoint(course.checkpoint())
    again.seek(cursor.state())
    assert again.next() == second
    assert again.next() == cursor.next()


async def test_a_stream_is_refused():
    with pytest.raises(ConfigError, match="chooses from a list"):
        await cursor_over((row for row in ROWS), "pools")


async def test_a_loader_that_takes_a_level_is_called_for_each_level():
    def problems(config, *, level=1):
        return [{"id": f"{level}/{i}"} for i in range(2)]

    stages = {"name": "staged", "levels": 3, "groups": 1}
    cursor, course = await cursor_over(problems, {"sampler": stages})
    assert {cursor.next()["id"] for _ in range(2)} == {"1/0", "1/1"}
    course.observe(
        [{"scores": [1.0], "masks": [[1]]}], cursor.next(), version=0, step=0, rollout="r"
    )
    assert cursor.next()["id"][:2] == "2/"
    plain, _ = await cursor_over(problems, {})
    assert {plain.next()["id"] for _ in range(2)} == {"1/0", "1/1"}
