"""A teacher's numbers on every group, in every subcommand; its failures are seen."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs.base import APIServerConfig, ServerBaseline
from atroposlib.envs.cli import main, read_settings
from atroposlib.envs.runtime.creation import make_env
from atroposlib.envs.teacher_distillation_env import (
    TeacherDistillationConfig,
    TeacherDistillationEnv,
    answer_start,
    checked_rows,
    tokenizer_of,
)
from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.fake_shapes import fake_logprob
from atroposlib.testing.tiny import char_tokenizer
from tests.envs.old_style.shapes import NodesConfig, NodesEnv

pytestmark = pytest.mark.filterwarnings("ignore:inference on this machine")


class Config(NodesConfig, TeacherDistillationConfig):
    pass


class TaughtEnv(NodesEnv, TeacherDistillationEnv):
    name = "taught"
    env_config_cls = Config

    def __init__(self, config, server_configs, slurm=True, testing=False, **teacher):
        TeacherDistillationEnv.__init__(
            self, config, server_configs, slurm=slurm, testing=testing, **teacher
        )
        self.eval_metrics = []

    @classmethod
    def config_init(cls):
        config = Config(group_size=2, use_wandb=False, max_token_length=256)
        return config, APIServerConfig(base_url="http://localhost:1/v1", server_type="vllm")


@pytest.fixture
def teacher():
    return FakeInference()


@pytest.fixture
def teacher_url(teacher):
    with teacher.running() as url:
        yield f"{url}/v1"


@pytest.fixture
def words(inference_url, teacher_url, tokenizer_dir, tmp_path):
    return [
        *("--openai.base_url", inference_url, "--env.tokenizer_name", tokenizer_dir),
        *("--teacher.base_url", teacher_url, "--teacher.server_type", "vllm"),
        *("--teacher.tokenizer_name", tokenizer_dir, "--env.teacher_enabled", "true"),
        *("--env.teacher_top_k", "3", "--env.max_failures_in_a_row", "3"),
        *("--env.data_path_to_save_groups", str(tmp_path / "groups.jsonl")),
        *("--env.data_dir_to_save_evals", str(tmp_path)),
    ]


def saved_groups(tmp_path):
    return [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()]


def test_process_saves_the_teachers_rows_one_entry_per_position(words, tmp_path, teacher):
    main(TaughtEnv, ["process", *words, "--env.total_steps", "2"])
    groups = saved_groups(tmp_path)
    assert len(groups) == 2
    for group in groups:
        for tokens, ids, logprobs in zip(
            group["tokens"], group["distill_token_ids"], group["distill_logprobs"]
        ):
            assert len(ids) == len(logprobs) == len(tokens)
            assert [len(row) for row in ids] == [len(row) for row in logprobs]
            assert ids[0] == []
            for some, their in zip(ids, logprobs):
                assert their == [fake_logprob(token) for token in some]
    asked = [body for _, body in teacher.requests]
    assert len(asked) == 4  # one per sequence
    assert {body["prompt_logprobs"] for body in asked} == {3}


class SelfTaughtEnv(TaughtEnv):
    """The teacher reads a hint instead of the prompt."""

    def teacher_prompt(self, item):
        return HINT


HINT = [7, 8, 9, 10, 11, 12]


def test_a_teacher_with_a_prompt_of_its_own_judges_the_same_answer(words, tmp_path, teacher):
    main(SelfTaughtEnv, ["process", *words, "--env.total_steps", "1"])
    (group,) = saved_groups(tmp_path)
    read = [body["prompt"]["prompt_token_ids"] for _, body in teacher.requests]
    for tokens, mask, ids in zip(group["tokens"], group["masks"], group["distill_token_ids"]):
        start = answer_start(mask)
        assert 0 < start < len(tokens) == len(ids)
        assert [*HINT, *tokens[start:]] in read
        assert all(row == [] for row in ids[:start]) and all(ids[start:])
        assert [row[0] for row in ids[start:]] == tokens[start:]
    assert answer_start([-100, -100]) == 2


def test_a_teacher_without_names_takes_those_of_its_server(
    words, tmp_path, teacher, tokenizer_dir, capsys
):
    teacher.shapes = frozenset({"completions"})
    teacher.cards = [{"id": "big", "owned_by": "atropos-local", "root": tokenizer_dir}]
    at = words.index("--teacher.tokenizer_name")
    words = ["process", *words[:at], *words[at + 2 :], "--env.total_steps", "1"]
    main(TaughtEnv, words)
    assert len(saved_groups(tmp_path)[0]["distill_token_ids"]) == 2
    assert {body["model"] for _, body in teacher.requests} == {"big"}
    with pytest.raises(SystemExit) as ended:
        main(TaughtEnv, [*words, "--teacher.model_name", "large"])
    assert ended.value.code == 2
    assert "'large' is not served" in (said := capsys.readouterr().err)
    assert "set --teacher.model_name to big, or leave it out" in said


def test_serve_sends_the_teachers_rows(words, api):
    with api.trainer(batch_size=4, num_steps=1) as trainer:
        serve = ["serve", *words, "--env.rollout_server_url", api.url]
        main(TaughtEnv, [*serve, "--env.total_steps", "1"])
        batch = trainer.claim(wait_s=5)
    for group in batch.batch:
        lengths = [len(row) for row in group.tokens]
        assert [len(rows) for rows in group.distill_token_ids] == lengths
        assert [len(rows) for rows in group.distill_logprobs] == lengths


def test_evaluate_makes_the_environment_with_its_teacher(words, tmp_path):
    main(TaughtEnv, ["evaluate", *words])
    assert (tmp_path / "metrics.json").exists()
    kept = (tmp_path / "evaluate_config.yaml").read_text()
    assert "teacher:\n" in kept and "teacher_enabled: true" in kept


@pytest.mark.parametrize("mode", ["serve", "process", "evaluate"])
def test_the_teachers_servers_come_from_code_file_and_flags(mode, tmp_path):
    class Env(TaughtEnv):
        @classmethod
        def teacher_config_init(cls):
            return APIServerConfig(base_url="http://code:1/v1", model_name="t", timeout=7)

    path = tmp_path / "settings.yaml"
    path.write_text("teacher:\n  base_url: http://yaml:2/v1\n  timeout: 8\n")
    words = [mode, "--config", str(path), "--teacher.base_url=http://flag:3/v1"]
    teacher = read_settings(Env, words).more_servers["teacher"]
    assert (teacher.base_url, teacher.timeout, teacher.model_name) == (
        "http://flag:3/v1",
        8,
        "t",
    )
    assert read_settings(TaughtEnv, [mode]).more_servers == {"teacher": None}
    with pytest.raises(ConfigError, match=r"--teacher.base_ulr; .* --teacher.base_url\?"):
        read_settings(Env, [mode, "--teacher.base_ulr", "x"])


def made(words, **config):
    env = make_env(TaughtEnv, read_settings(TaughtEnv, ["process", *words]))
    env.config = env.config.model_copy(update=config)
    return env


GROUP = {"tokens": [[5, 6, 7], [5, 6]], "masks": [[-100, 6, 7], [-100, 6]], "scores": [1, 0]}


@pytest.mark.parametrize(
    ("config", "overrides", "top_k"),
    [
        ({"teacher_top_k": 4}, None, 4),
        ({"teacher_top_k": 0}, {}, 0),
        ({"teacher_top_k": -1}, {}, None),
        ({"teacher_top_k": 4}, {"teacher_top_k": 2}, 2),
        ({"teacher_top_k": 4}, {"teacher_top_k": 0}, 0),
        ({"teacher_top_k": 4}, {"teacher_top_k": -1}, None),
        ({"teacher_top_k": -1}, {"teacher_top_k": 2}, 2),
        ({"teacher_top_k": 4}, {"skip_teacher_top_k": True}, None),
    ],
)
async def test_overrides_of_a_group_set_the_number_of_teacher_tokens(
    words, config, overrides, top_k
):
    env = made(words, **config)
    group = {**GROUP, "group_overrides": overrides}
    assert env._atropos.top_k_of(group) == top_k
    taught = await env._atropos.with_teacher(group, None)
    await env.close()
    assert (taught["distill_token_ids"] is None) == (top_k is None)
    assert "distill_token_ids" not in group  # the caller's group is left alone


async def test_a_group_is_sent_without_a_failing_teacher(words, tmp_path, teacher, caplog):
    env = made(words)
    teacher.fail_next.extend([400, 400])
    kept = await env.handle_send_to_api(GROUP, "item-1", do_send_to_api=False)
    await env.close()
    assert [group["tokens"] for group in kept] == [GROUP["tokens"]]
    assert kept[0].get("distill_token_ids") is None
    assert env._atropos.teacher_failures == {"InferenceRefused": 1}
    assert "'item-1' is sent without teacher logprobs" in caplog.text
    emitted = []
    env._atropos.metrics_logger.emit = lambda metrics, step: emitted.append(metrics)
    await env.wandb_log()
    assert emitted[0]["train/teacher_failed"] == 1
    assert emitted[0]["train/teacher_failed_InferenceRefused"] == 1
    assert emitted[0]["train/teacher_groups"] == 0


async def test_a_server_without_prompt_logprobs_is_named(words, inference_url, caplog):
    env = made([*words, "--teacher.server_type", "openai"])
    (taught,) = await env.handle_send_to_api([None, GROUP], "item-1", do_send_to_api=False)
    await env.close()
    assert taught["tokens"] == GROUP["tokens"]
    assert sum(env._atropos.teacher_failures.values()) == 1
    assert "get_logprobs" in caplog.text


def test_rows_that_do_not_match_the_tokens_are_refused():
    assert checked_rows([[], [3]], [[], [-0.5]], 2) == ([[], [3]], [[], [-0.5]])
    with pytest.raises(InvalidGroup, match="1 ids, 1 logprobs for 2 tokens"):
        checked_rows([[3]], [[-0.5]], 2)
    with pytest.raises(InvalidGroup, match=r"\[1\]: 2 ids and 1 logprobs"):
        checked_rows([[], [3, 4]], [[], [-0.5]], 2)


# --- construction -------------------------------------------------------------------------

SERVER = APIServerConfig(base_url="http://s:1/v1", server_type="vllm", model_name="m")


def test_enabled_without_servers_names_the_missing_setting():
    config = Config(teacher_enabled=True)
    with pytest.raises(
        ValueError, match="--teacher.base_url, or override teacher_config_init"
    ):
        TaughtEnv(config, SERVER)
    assert TaughtEnv(Config(), SERVER).teacher_server is None


def test_a_teacher_with_another_vocabulary_is_refused(tokenizer_dir, tmp_path):
    char_tokenizer("xyz").save_pretrained(tmp_path)
    config = Config(teacher_enabled=True, tokenizer_name=tokenizer_dir)
    other = SERVER.model_copy(update={"tokenizer_name": str(tmp_path)})
    with pytest.raises(ValueError, match="another vocabulary"):
        TaughtEnv(config, SERVER, teacher_server_configs=other)
    char_tokenizer().save_pretrained(tmp_path)
    env = TaughtEnv(config, SERVER, teacher_server_configs=[other])
    assert len(env.teacher_server.servers) == 1


def test_a_tokenizer_that_cannot_be_loaded_is_named(tokenizer_dir, tmp_path):
    config = Config(teacher_enabled=True, tokenizer_name=tokenizer_dir)
    absent = SERVER.model_copy(update={"tokenizer_name": str(tmp_path / "absent")})
    with pytest.raises(ConfigError, match="no directory .*absent"):
        TaughtEnv(config, SERVER, teacher_server_configs=absent)


@pytest.mark.parametrize(
    ("tokenizer_name", "expected"), [("none", "m"), ("", "m"), ("t", "t")]
)
def test_the_models_name_stands_for_a_tokenizer_that_is_not_named(tokenizer_name, expected):
    baseline = ServerBaseline(model_name="m", tokenizer_name=tokenizer_name)
    assert tokenizer_of(baseline) == expected
