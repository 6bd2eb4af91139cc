"""Attributes that released environments read and set, and recorded groups."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs.base import BaseEnvConfig
from atroposlib.wire.images import pictures_of
from tests.envs.toys import ToyEnv, toy_env


async def test_logged_values_and_group_metrics_reach_the_metrics_file(toy_config, tmp_path):
    path = tmp_path / "m.jsonl"
    env = toy_env(toy_config, "http://127.0.0.1:9/v1", metrics_path=str(path))
    env.log("train/mood", 1.0)
    group = {"tokens": [[5, 6], [5, 7]], "masks": [[-100, 6], [-100, 7]], "scores": [0.0, 1.0]}
    kept = await env.handle_send_to_api(
        [
            {**group, "metadata": {"metrics": {"exact": 0.5}}},
            None,
            {**group, "scores": [1.0, 1.0]},
        ],
        "item",
        do_send_to_api=False,
    )
    await env.wandb_log({"train/extra": 2})
    await env.close()
    line = json.loads(path.read_text())
    assert len(kept) == 1
    assert (
        line["train/mood"] == 1.0 and line["train/extra"] == 2 and line["train/exact"] == 0.5
    )
    assert line["train/completion_lengths"] == 1.0
    assert line["train/items_rejected"] == line["train/dropped_same_scores"] == 1


async def test_values_that_are_no_groups_are_counted_and_end_nothing(env):
    env.config.include_messages = True
    made = [7, {"scores": [1.0]}, {"tokens": [[5]], "metadata": [1]}, [{}]]
    assert await env.handle_send_to_api(made, "item", do_send_to_api=False) == []
    assert await env.handle_send_to_api(7, "item", do_send_to_api=False) == []
    assert env._atropos.group_stats.by_reason() == {"dropped_malformed": 5}


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("serve", {}),
        (
            "process",
            {"do_send_to_api": False, "abort_on_any_max_length_exceeded": False},
        ),
    ],
)
async def test_the_hook_of_a_delivery_gets_the_arguments_of_the_original(
    env, command, settings
):
    taken, group = [], {"tokens": [[5]], "masks": [[5]], "scores": [1.0]}

    async def send(scored_data, item=None, **given):
        taken.append((scored_data, item, given))

    env.handle_send_to_api = send
    if command == "process":
        env._atropos.begin_process()
    assert await env._atropos.pool.deliver([group], "item") == 0
    assert taken == [(group, "item", settings)]


async def test_groups_that_a_hook_accepts_itself_are_counted(env):
    group = {"tokens": [[5], [6]], "masks": [[5], [6]], "scores": [0.0, 1.0]}
    kept = env._atropos.pool.counts
    await env.handle_send_to_api(group, "item", do_send_to_api=False)
    assert kept["kept"] == 1  # a handle_env by hand: no delivery of the pool counts

    async def send(scored_data, item=None, **settings):
        await ToyEnv.handle_send_to_api(env, [scored_data, scored_data], item, False)

    env.handle_send_to_api = send
    assert await env._atropos.pool.deliver([group], "item") == 2 and kept["kept"] == 1


ATTRIBUTES = (
    "config server tokenizer workers eval_workers backlog running_items curr_step max_token_len "
    "completion_lengths rollouts_for_wandb items_sent_this_step task_duration "
    "succeeded_task_duration failed_task_duration mainloop_timings workers_added_list "
    "task_successful last_completed_item eval_runner wandb_project wandb_group wandb_prepend "
    "checkpoint_dir checkpoint_interval status_dict env_id jsonl_writer process_mode "
    "n_groups_to_process group_size_to_process derived_batch_size max_num_workers"
).split()


@pytest.fixture
def env(toy_config, inference_url):
    return toy_env(toy_config, inference_url)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_new_environment_has_the_attributes_of_the_original(env, name):
    getattr(env, name)


def test_attributes_have_their_original_initial_values(env):
    assert (env.curr_step, env.max_token_len, env.checkpoint_dir) == (0, -1, "")
    assert (env.checkpoint_interval, env.jsonl_writer) == (-1, None)
    assert env.workers == set() == env.eval_workers
    assert env.derived_batch_size == env.config.batch_size == -1
    assert env.max_num_workers == 8  # per server, and there is one
    env.backlog.append("item")
    env.completion_lengths.append(3)


def test_the_callers_config_is_not_changed_by_the_environment(toy_config, inference_url):
    toy_config.data_path_to_save_groups = "groups.jsonl"
    env = toy_env(toy_config, inference_url)
    env.config.group_size = 99
    assert toy_config.group_size == 2


def test_an_existing_path_gets_a_number_in_file_and_config(env, toy_config, tmp_path):
    wanted = tmp_path / "groups.jsonl"
    wanted.write_text("")
    toy_config.data_path_to_save_groups = str(wanted)
    again = ToyEnv(toy_config, [server.config for server in env.server.servers])
    assert again.config.data_path_to_save_groups == str(tmp_path / "groups_1.jsonl")
    again.jsonl_writer.write({"tokens": [[1]]})
    again.jsonl_writer.close()
    assert json.loads((tmp_path / "groups_1.jsonl").read_text()) == {"tokens": [[1]]}


def test_attributes_that_old_environments_set_reach_their_owner(env):
    env.curr_step, env.items_sent_this_step, env.checkpoint_dir = 5, 2, "/runs"
    env.completion_lengths, env.rollouts_for_wandb = [7], [[("text", 1.0)]]
    assert (env._atropos.joined_run.step, env._atropos.joined_run.checkpoint_dir) == (
        5,
        "/runs",
    )
    assert env._atropos.group_stats.kept_since_log == 2
    assert env._atropos.metrics_logger.completion_lengths == [7]
    assert env._atropos.metrics_logger.rollouts == [[("text", 1.0)]]


def test_values_set_before_the_constructor_are_replaced(env):
    class Early(ToyEnv):
        def __init__(self, *args, **kwargs):
            self.curr_step, self.completion_lengths = 9, [1]
            super().__init__(*args, **kwargs)

    early = Early(BaseEnvConfig(), [env.server.servers[0].config])
    assert (early.curr_step, early.completion_lengths) == (0, [])


class Keys:
    """Source of keys, as a sender of groups has it."""

    def next_key(self) -> str:
        return "key"


@pytest.mark.parametrize("once", [False, True])
def test_a_picture_is_sent_once_per_group_where_the_settings_ask_for_it(env, once):
    url = "data:image/png;base64," + "A" * 200
    group = {"tokens": [[5], [6]], "masks": [[5], [6]], "scores": [1.0, 0.0]}
    group["images"] = [[url], [url]]
    env.config.images_once = once
    sent = env._atropos._label(group, "item", Keys())
    assert sent["images"][0] == [url] and (sent["images"][1] == [url]) is not once
    assert pictures_of(sent["images"], 1) == [url]
    assert env._atropos._label(group, "item", None)["images"] == [[url], [url]]
