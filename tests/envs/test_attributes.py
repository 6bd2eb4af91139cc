"""Every word but those of the original belongs to the author of an environment."""

from __future__ import annotations

import json

import httpx
import pytest

from atroposlib.envs.attributes import RuntimeAttribute
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.cli import main
from atroposlib.envs.runtime.env_runtime import runtime_of
from atroposlib.envs.runtime.process import run_evaluate
from atroposlib.envs.teacher_distillation_env import (
    TeacherDistillationConfig,
    TeacherDistillationEnv,
)
from tests.envs import words
from tests.envs.words import ORIGINAL, WAYS, foreign_words

WORDS = foreign_words()
SERVER = APIServerConfig(base_url="http://127.0.0.1:9/v1", health_check=False)
GROUP = {"tokens": [[5, 6], [5, 7]], "masks": [[-100, 6], [-100, 7]], "scores": [0.0, 1.0]}


class Plain(BaseEnv):
    """An environment that calls no server, of words of the original only."""

    name = "plain"

    async def setup(self):
        vars(self)["_place"] = 0  # its name is in no list of words

    async def get_next_item(self):
        return {"id": "item"}

    async def collect_trajectories(self, item):
        return {**GROUP}, []

    async def evaluate(self, *args, **kwargs):
        await self.evaluate_log({"exact": 0.25}, samples=[{"prompt": "p", "reward": 1.0}])


class PlainTaught(Plain, TeacherDistillationEnv):
    env_config_cls = TeacherDistillationConfig


BASES = [Plain, PlainTaught]


@pytest.fixture
def settings(tmp_path):
    return {
        **{"use_wandb": False, "group_size": 2, "total_steps": 2, "tokenizer_name": "none"},
        **{"include_messages": False, "max_num_workers": 2, "max_failures_in_a_row": 3},
        **{"trainer_timeout_s": 20, "api_timeout_s": 20, "steps_per_eval": 1},
        **{"min_items_sent_before_logging": 0, "metrics_path": str(tmp_path / "m.jsonl")},
    }


async def process(env_cls, settings, tmp_path):
    path = tmp_path / f"groups-{env_cls.__name__}.jsonl"
    path.unlink(missing_ok=True)
    config = env_cls.env_config_cls(**settings, data_path_to_save_groups=str(path))
    kept = await env_cls(config, [SERVER]).process_manager()
    return kept, [json.loads(line)["scores"] for line in path.read_text().splitlines()]


async def evaluate(env_cls, settings, tmp_path):
    path = tmp_path / "metrics.json"
    path.unlink(missing_ok=True)
    config = env_cls.env_config_cls(**settings, data_dir_to_save_evals=str(tmp_path))
    await run_evaluate(runtime_of(env_cls(config, [SERVER])))
    return json.loads(path.read_text())["results"]["all"]


async def serve(env_cls, settings, api):
    httpx.get(f"{api.url}/reset_data").raise_for_status()
    trainer = api.trainer(batch_size=4, num_steps=1)
    config = env_cls.env_config_cls(
        **{**settings, "total_steps": 1}, rollout_server_url=api.url
    )
    await env_cls(config, [SERVER]).env_manager()
    claimed = trainer.claim(wait_s=5)
    return sum(len(group.tokens) for group in claimed.batch)


async def broken(run, put, base, some):
    """The words of ``some`` with which the result is another."""
    try:
        await run(put(base, some))
        return []
    except BaseException as error:
        if len(some) == 1:
            return [f"{some[0]}: {error!r}"[:300]]
    half = len(some) // 2
    return [
        *await broken(run, put, base, some[:half]),
        *await broken(run, put, base, some[half:]),
    ]


@pytest.mark.parametrize("put", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
async def test_words_of_the_author_change_nothing(base, put, settings, tmp_path, api):
    expected = (
        await process(base, settings, tmp_path),
        await evaluate(base, settings, tmp_path),
    )
    assert expected == ((2, [[0.0, 1.0]] * 2), {"exact": 0.25})

    async def run(env_cls):
        assert await process(env_cls, settings, tmp_path) == expected[0]
        assert await evaluate(env_cls, settings, tmp_path) == expected[1]

    assert await broken(run, put, base, WORDS) == []
    assert await serve(put(base, WORDS), settings, api) == 4


def test_the_words_are_taken_from_the_code():
    assert len(WORDS) > 1500
    taken = "close pool label sender log group_file serving process_mode machinery runtime"
    more = (
        "group_stats metrics_logger joined_run _deliver more_servers require_data definition"
    )
    assert {*taken.split(), *more.split()} <= {*WORDS}
    assert not ORIGINAL & {*WORDS}


def test_an_environment_has_no_further_public_words():
    """``log`` and ``close`` are for authors to call; the library calls neither."""
    public = {name for name in dir(BaseEnv) if not name.startswith("_")}
    assert public - ORIGINAL == {"close", "log", "process_mode"}


def test_an_environment_sets_only_words_of_the_original(settings):
    env = Plain(BaseEnvConfig(**settings), [SERVER])
    assert vars(env).keys() == {"config", "server", words.SLOT}


async def test_an_async_close_of_the_author_runs_at_the_end(settings, tmp_path, caplog):
    ends = []

    class Closing(Plain):
        async def close(self):
            ends.append(runtime_of(self).metrics_logger.is_closed)
            await super().close()
            raise OSError("sandbox")

    await process(Closing, settings, tmp_path)
    assert ends == [False] and "close failed" in caplog.text
    asked = []

    class Other(Plain):
        async def close(self, door):
            asked.append(door)

    await process(Other, settings, tmp_path)
    assert asked == []


async def test_values_that_a_user_sets_reach_the_runtime(settings):
    class Early(Plain):
        def __init__(self, *args, **kwargs):
            self.completion_lengths = []
            self.completion_lengths.append(1)
            super().__init__(*args, **kwargs)

    env = Early(BaseEnvConfig(**settings), [SERVER])
    assert env.completion_lengths == []
    env.backlog = ["a", "b"]
    assert runtime_of(env).pool.next_waiting().item == "a"
    env.status_dict = {"current_step": 4}
    assert env.status_dict == {"current_step": 4}
    assert isinstance(BaseEnv.curr_step, RuntimeAttribute)
    with pytest.raises(AttributeError, match="super"):
        Plain.__new__(Plain).curr_step


async def test_settings_that_are_replaced_after_the_constructor_count(settings, api):
    class Replacing(Plain):
        def __init__(self, config, server_configs, slurm=False, testing=False):
            super().__init__(config, server_configs, slurm, testing)
            self.config = config

    assert await serve(Replacing, settings, api) == 4


# --- fields of the settings ----------------------------------------------------------------

NEW_FIELDS = sorted(BaseEnvConfig.model_fields.keys() - words.fields_of_the_original())


def config_of(kind, default, names=(*NEW_FIELDS, "tracker_names")):
    members = {"__annotations__": {name: kind for name in names}}
    return type("Theirs", (BaseEnvConfig,), {**members, **{name: default for name in names}})


@pytest.mark.filterwarnings("ignore:Field name")
@pytest.mark.parametrize(
    ("kind", "default"),
    [(list[str], ["x"]), (str, "word"), (dict[str, int], {}), (bool, True), (float, -1.5)],
)
async def test_a_field_of_the_author_wins_and_breaks_nothing(
    kind, default, settings, tmp_path, api, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # "word" is a path too: a file of metrics

    class Theirs(Plain):
        env_config_cls = config_of(kind, default)

        async def setup(self):
            assert {getattr(self.config, name) == default for name in NEW_FIELDS} == {True}

    kept = {name: value for name, value in settings.items() if name not in NEW_FIELDS}
    assert (await process(Theirs, kept, tmp_path))[0] == 2
    assert await evaluate(Theirs, kept, tmp_path) == {"exact": 0.25}
    assert await serve(Theirs, kept, api) == 4


@pytest.mark.filterwarnings("ignore:Field name")
def test_a_flag_takes_the_type_of_the_author(tmp_path, capsys):
    seen = []

    class Theirs(Plain):
        env_config_cls = config_of(list[str], ["x"])

        async def setup(self):
            seen.append(self.config.seed)

    path = ["--env.data_path_to_save_groups", str(tmp_path / "g.jsonl")]
    more = ["--env.total_steps", "1", "--env.group_size", "2", "--env.use_wandb", "false"]
    more += ["--env.include_messages", "false", "--openai.health_check", "false"]
    main(Theirs, ["process", "--env.seed", '["a", "b"]', *path, *more])
    assert seen == [["a", "b"]]
    with pytest.raises(SystemExit):
        main(Theirs, ["process", "--help"])
    assert "--env.seed" in capsys.readouterr().out
