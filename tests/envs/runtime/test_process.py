"""``process``: groups into a file, side by side, and an end when nothing works."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal

import pytest

from atroposlib.envs.base import APIServerConfig, BaseEnv
from atroposlib.envs.runtime import metrics_logger
from atroposlib.envs.runtime.process import OnlyFailures, run_evaluate
from atroposlib.envs.runtime.waits import StopRequested
from atroposlib.errors import ConfigError, InferenceUnavailable, RolloutError
from tests.envs.toys import ToyEnv, toy_env


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


def exported_groups(page):
    """Number of groups in an exported page."""
    return len(set(re.findall(r'"/explore/groups/(\d+)":', page.read_text())))


async def test_exactly_the_wanted_number_of_groups_is_written(process_env, tmp_path, fake):
    env = process_env()
    assert await env.process_manager() == 4
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    assert [g["scores"] for g in groups] == [[0.0, 1.0]] * 4
    assert len(fake.requests) == 4
    assert "answer 0" in groups[0]["messages"][0][0]["content"]
    assert exported_groups(tmp_path / "groups.html") == 4


async def test_rollouts_run_side_by_side_up_to_the_workers(process_env):
    env = process_env(max_num_workers=3, total_steps=6)
    seen = []
    original = env.collect_trajectories

    async def counted(item):
        seen.append(env._atropos.pool.busy)
        return await original(item)

    env.collect_trajectories = counted
    assert await env.process_manager() == 6
    assert max(seen) == 3


async def test_failures_are_tried_again_and_the_run_completes(process_env):
    env = process_env()
    env.failures.extend([ValueError("once"), ValueError("twice")])
    assert await env.process_manager() == 4
    assert env._atropos.pool.counts["retried"] == 2


async def test_a_run_that_only_fails_stops_with_the_reason(process_env):
    env = process_env(max_failures_in_a_row=5, max_num_workers=1)
    env.failures.extend(ValueError("broken reward " + "x" * i) for i in range(100))
    with pytest.raises(OnlyFailures, match="5 items in a row(.|\n)*broken reward"):
        await env.process_manager()


async def test_one_mistake_in_the_first_two_items_ends_the_run(process_env, caplog):
    env = process_env(max_num_workers=8)
    env.failures.extend(ValueError(f"broken reward {i}") for i in range(100))
    ends = (
        r"toys.py:\d+: ValueError: broken reward 1, in `raise .*item-2.*\nall samples of the"
    )
    with pytest.raises(OnlyFailures, match=ends):
        await env.process_manager()
    assert env.rolled_out == ["item-1", "item-2"]
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


async def test_a_mistake_in_one_of_the_first_two_items_is_only_counted(process_env, caplog):
    env = process_env(total_steps=20)
    env.failures.extend(ValueError("bad") for _ in range(1))
    assert await env.process_manager() == 20
    env = process_env(total_steps=2)
    env.collect_trajectories = failing_but_for_the_first(env.collect_trajectories, 12)
    assert await env.process_manager() == 2
    assert caplog.text.count("ValueError: bad item") == 1


def failing_but_for_the_first(collect, times):
    calls = iter(range(100))

    async def scripted(item):
        if 0 < next(calls) <= times:
            raise ValueError("bad item")
        return await collect(item)

    return scripted


async def test_items_that_fail_in_the_same_tick_are_bounded(process_env):
    env = process_env(max_failures_in_a_row=6)

    async def fails_at_once(item):
        raise KeyError(item["id"].replace("item-", "x" * env.iter))

    env.collect_trajectories = fails_at_once
    with pytest.raises(OnlyFailures):
        await asyncio.wait_for(env.process_manager(), 600)
    assert env.iter <= 6 + env.max_num_workers


async def test_an_absent_server_is_waited_for_after_any_number_of_failures(process_env):
    env = process_env(max_failures_in_a_row=2, max_num_workers=2)
    env.failures.extend(InferenceUnavailable("down") for _ in range(5))
    assert await env.process_manager() == 4
    assert env._atropos.pool.counts["failed"] == 5


async def test_a_server_absent_for_too_long_ends_the_run_and_is_named(process_env):
    env = process_env(max_failures_in_a_row=2, max_num_workers=2, api_timeout_s=0.01)
    env.failures.extend(InferenceUnavailable("down") for _ in range(50))
    with pytest.raises(OnlyFailures, match="down"):
        await env.process_manager()


async def test_a_run_that_only_drops_groups_stops_with_the_reason(process_env):
    env = process_env(max_failures_in_a_row=5, ensure_scores_are_not_same=True)
    env.same_scores = True
    with pytest.raises(OnlyFailures, match="dropped_same_scores"):
        await env.process_manager()


async def test_items_without_a_group_by_the_environments_decision_end_nothing(
    process_env, caplog
):
    env = process_env(max_failures_in_a_row=2, max_num_workers=1)
    original = env.collect_trajectories

    async def seldom(item):
        return await original(item) if env.iter % 70 == 0 else (None, [])

    async def none_scored(collected):
        return collected if env.iter % 140 == 0 else None

    env.collect_trajectories, env.postprocess_histories = seldom, none_scored
    assert await env.process_manager() == 4
    assert env.iter == 4 * 140 and env._atropos.pool.counts["empty"] == 4 * 139
    warned = [r for r in caplog.records if "items in a row gave no group" in r.message]
    assert len(warned) == 8  # at 64 and 128 items of each 140
    assert env._atropos.pool.last_error is None


async def test_groups_that_serve_would_drop_are_counted_at_the_end(process_env, caplog):
    env = process_env(max_token_length=5)
    env.same_scores = True
    caplog.set_level(logging.INFO)
    assert await env.process_manager() == 4
    assert "`serve` would drop 4 same_scores, 4 too_long of these" in caplog.text


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


async def test_running_out_of_items_ends_the_run_as_in_the_original(
    process_env, tmp_path, caplog
):
    env = process_env(items=2)
    assert await env.process_manager() == 2
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 2
    assert "2 of 4 groups were made from 2 items" in caplog.text


@pytest.mark.parametrize(("items", "failures"), [(0, 0), (2, 1)])
async def test_running_out_of_items_without_a_group_or_after_a_failure_is_an_error(
    process_env, items, failures
):
    env = process_env(items=items, max_item_retries=0)
    env.failures.extend(ValueError("broken reward") for _ in range(failures))
    with pytest.raises(OnlyFailures, match="of 4 groups were made"):
        await env.process_manager()


async def test_an_existing_file_is_never_overwritten(process_env, tmp_path):
    (tmp_path / "groups.jsonl").write_text("precious\n")
    env = process_env(total_steps=1)
    await env.process_manager()
    assert (tmp_path / "groups.jsonl").read_text() == "precious\n"
    assert len((tmp_path / "groups_1.jsonl").read_text().splitlines()) == 1


async def test_no_number_of_groups_is_a_clear_error(process_env):
    with pytest.raises(ConfigError, match="total_steps"):
        await process_env(total_steps=-1).process_manager()


async def test_a_signal_keeps_the_finished_groups_and_writes_their_page(process_env, tmp_path):
    env = process_env(total_steps=100, max_num_workers=1)
    original = env.collect_trajectories

    async def third_hangs(item):
        if item["id"] == "item-3":
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return await original(item)

    env.collect_trajectories = third_hangs
    with pytest.raises(StopRequested):
        await asyncio.wait_for(env.process_manager(), 600)
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 2
    assert exported_groups(tmp_path / "groups.html") == 2
    assert env._atropos.pool.counts["cancelled"] == 1


async def test_an_exception_keeps_the_finished_groups_and_writes_their_page(
    process_env, tmp_path
):
    env = process_env(max_num_workers=1)
    original = env.get_next_item

    async def breaks_at_third():
        if env.iter == 2:
            raise OSError("the dataset is gone")
        return await original()

    env.get_next_item = breaks_at_third
    with pytest.raises(RolloutError, match="get_next_item failed"):
        await env.process_manager()
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "groups.html").exists()


async def test_dropped_and_short_groups_are_not_counted_as_kept(process_env, tmp_path):
    env = process_env(total_steps=2, max_num_workers=1)
    original, bad = env.collect_trajectories, iter([None, float("nan"), 1.0, 1.0, 1.0])

    async def first_two_are_bad(item):
        group, backlog = await original(item)
        group["scores"][1] = next(bad)
        return group, backlog

    env.collect_trajectories = first_two_are_bad
    assert await env.process_manager() == 2
    assert (
        env._atropos.group_stats.dropped == {"short": 1}
        and env._atropos.pool.counts["failed"] == 1
    )
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 2


async def test_wandb_is_opened_only_if_configured(process_env, monkeypatch):
    opened = []
    monkeypatch.setattr(metrics_logger, "open_tracker", lambda name, run: opened.append(name))
    monkeypatch.setattr(metrics_logger, "is_installed", lambda name: True)
    await process_env(total_steps=1, use_wandb=False).process_manager()
    assert opened == []
    env = process_env(total_steps=1, use_wandb=True, num_rollouts_to_keep=0)
    await env.process_manager()
    assert opened == ["wandb"]


class SampleEnv(ToyEnv):
    """One sample at a time; ``script`` holds the next results."""

    collect_trajectories = BaseEnv.collect_trajectories
    script = ()

    async def collect_trajectory(self, item):
        score = next(self.script)
        if isinstance(score, Exception):
            raise score
        if score == "none":
            return None, []
        return {"tokens": [5, 6], "masks": [-100, 6], "scores": score}, []


async def test_failed_samples_are_drawn_again_and_counted_by_outcome(toy_config, tmp_path):
    path = tmp_path / "groups.jsonl"
    settings = {"total_steps": 1, "data_path_to_save_groups": str(path), "group_size": 4}
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="vllm")
    env = SampleEnv(toy_config.model_copy(update=settings), [server])
    late, away = TimeoutError(), InferenceUnavailable("no server")
    env.script = iter(["none", late, away, float("nan"), 0.0, 1.0, 0.25, 0.5])
    assert await env.process_manager() == 1
    assert sorted(json.loads(path.read_text())["scores"]) == [0.0, 0.25, 0.5, 1.0]
    expected = {"no_score": 1, "timeout": 1, "infra_error": 1, "judge_error": 1}
    assert env._atropos.group_stats.samples == expected


async def test_an_item_whose_group_stays_short_is_tried_again_and_the_group_counted(
    toy_config, tmp_path
):
    settings = {"total_steps": 1, "data_path_to_save_groups": str(tmp_path / "groups.jsonl")}
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="vllm")
    env = SampleEnv(toy_config.model_copy(update=settings), [server])
    env.config.max_num_workers = env.max_num_workers = 1
    env.config.total_steps = 2
    env.script = iter([None, None, None, None, 0.0, 1.0, 0.0, 1.0])
    assert await env.process_manager() == 2
    assert env._atropos.group_stats.dropped == {
        "short": 1
    } and env._atropos.group_stats.samples == {"no_score": 4}
    assert (env.iter, env._atropos.pool.counts["retried"]) == (2, 1)


async def test_evaluate_writes_its_results_and_closes(toy_config, tmp_path, capsys):
    env = toy_env(toy_config, "http://127.0.0.1:9/v1", data_dir_to_save_evals=str(tmp_path))
    await run_evaluate(env._atropos)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["results"]["atropos|toy_eval|0"] == {"exact": 0.25}
    assert written["config_general"]["model_name"] == "fake"
    assert "|0.2500|" in capsys.readouterr().out


async def test_a_failing_evaluation_fails_the_command(toy_config):
    env = toy_env(toy_config, "http://127.0.0.1:9/v1")

    async def broken(*args, **kwargs):
        raise KeyError("no test split")

    env.evaluate = broken
    with pytest.raises(RolloutError, match="evaluate failed"):
        await run_evaluate(env._atropos)
