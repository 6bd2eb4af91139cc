"""Tasks that a sampler chooses: places, levels, and classes with a list."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.curriculum.pools import DifficultyPools
from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.data import Cursor, prepare_tasks
from atroposlib.envs.function_env.sampled_tasks import ChosenTasks, task_source_of
from atroposlib.errors import ConfigError
from tests.envs.curriculum.conftest import group
from tests.envs.toys import ToyConfig, ToyEnv, eventually, toy_env
from tests.serving import WAIT_S

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


class ListEnv(ToyEnv):
    """A class that hands out tasks of a list, none of which gives a reward."""

    async def setup(self):
        self.same_scores = True
        self.tasks = ChosenTasks(self, ROWS)

    async def get_next_item(self):
        return self.tasks.next()


def list_env(url="http://127.0.0.1:9/v1", **changes):
    config = ToyConfig(use_wandb=False, group_size=2, total_steps=3, **changes)
    server = toy_env(config, url).server.servers[0].config
    return ListEnv(config, [server])


SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=3)


@given(st.lists(SCORES, max_size=25))
async def test_a_class_gets_the_draws_of_the_sampler_alone_which_knows_its_groups(scores):
    env = list_env(curriculum="pools")
    await env.setup()
    course = env._atropos.curriculum
    alone = DifficultyPools(TaskRows(ROWS, range(len(ROWS))), seed=env.config.seed)
    for place, of_group in enumerate(scores):
        item, task = env.tasks.next(), alone.draw()
        assert item == task.content
        groups = [{"scores": of_group, "masks": [[1]] * len(of_group)}] if of_group else []
        course.observe(groups, item, version=0, step=0, rollout=f"r{place}")
        alone.observe(group(task, *of_group))
    assert course.sampler.state() == alone.state()
    await env.close()


async def test_the_sampler_of_a_class_observes_the_groups_that_are_dropped(api, inference_url):
    api.trainer(batch_size=4, num_steps=3)
    env = list_env(inference_url, rollout_server_url=api.url, curriculum="pools")
    serving = asyncio.ensure_future(env.env_manager())
    course, stats = env._atropos.curriculum, env._atropos.group_stats
    await eventually(
        lambda: (
            course.sampler is not None
            and {course.pool_of(task) for task in course.sampler.tasks} == {"too_hard"}
        )
    )
    env._atropos.serving.shutdown.request("test")
    await asyncio.wait_for(serving, WAIT_S)
    assert stats.sent == 0 < stats.dropped["same_scores"]
    assert (
        course.counts.totals["groups"]
        >= len(ROWS)
        > course.counts.totals["useful_groups"]
        == 0
    )
