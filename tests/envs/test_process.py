"""``process``: groups into a file, side by side, and an end when nothing works."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs.process import OnlyFailures
from atroposlib.errors import ConfigError
from tests.envs.toys import toy_env


@pytest.fixture
def process_env(toy_config, inference_url, tmp_path):
    def make(**changes):
        settings = {
            "data_path_to_save_groups": str(tmp_path / "groups.jsonl"),
            "ensure_scores_are_not_same": False,
            "include_messages": True,
            "total_steps": 4,
            **changes,
        }
        return toy_env(toy_config, inference_url, **settings)

    return make


async def test_exactly_the_wanted_number_of_groups_is_written(process_env, tmp_path, fake):
    env = process_env()
    assert await env.process_manager() == 4
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    assert [g["scores"] for g in groups] == [[0.0, 1.0]] * 4
    assert len(fake.requests) == 4
    assert "answer 0" in groups[0]["messages"][0][0]["content"]
    page = (tmp_path / "groups.html").read_text()
    assert page.count("<details>") == 4


async def test_rollouts_run_side_by_side_up_to_the_workers(process_env):
    env = process_env(max_num_workers=3, total_steps=6)
    seen = []
    original = env.collect_trajectories

    async def counted(item):
        seen.append(env.pool.busy)
        return await original(item)

    env.collect_trajectories = counted
    assert await env.process_manager() == 6
    assert max(seen) == 3


async def test_failures_are_tried_again_and_the_run_completes(process_env):
    env = process_env()
    env.failures.extend([ValueError("once"), ValueError("twice")])
    assert await env.process_manager() == 4
    assert env.pool.counts["retried"] == 2


async def test_a_run_that_only_fails_stops_and_says_why(process_env):
    env = process_env(max_failures_in_a_row=5, max_num_workers=1)
    env.failures.extend(ValueError(f"broken reward {i}") for i in range(100))
    with pytest.raises(OnlyFailures, match="5 items in a row.*broken reward"):
        await env.process_manager()


async def test_a_run_that_only_drops_stops_and_says_why(process_env):
    env = process_env(max_failures_in_a_row=5, ensure_scores_are_not_same=True)
    env.same_scores = True
    with pytest.raises(OnlyFailures, match="dropped_same_scores"):
        await env.process_manager()


async def test_backlog_items_are_rolled_out_too(process_env):
    env = process_env(items=1, total_steps=3, max_num_workers=1)
    original = env.collect_trajectories

    async def with_stages(item):
        group, _ = await original(item)
        more = {"item-1": [{"id": "stage-2"}], "stage-2": [{"id": "stage-3"}]}
        return group, more.get(item["id"], [])

    env.collect_trajectories = with_stages
    assert await env.process_manager() == 3
    assert env.rolled_out == ["item-1", "stage-2", "stage-3"]


async def test_running_out_of_items_ends_the_run(process_env, tmp_path):
    env = process_env(items=2)
    assert await env.process_manager() == 2


async def test_an_existing_file_is_never_overwritten(process_env, tmp_path):
    (tmp_path / "groups.jsonl").write_text("precious\n")
    env = process_env(total_steps=1)
    await env.process_manager()
    assert (tmp_path / "groups.jsonl").read_text() == "precious\n"
    assert len((tmp_path / "groups_1.jsonl").read_text().splitlines()) == 1


async def test_no_number_of_groups_is_a_clear_error(process_env):
    with pytest.raises(ConfigError, match="total_steps"):
        await process_env(total_steps=-1).process_manager()
