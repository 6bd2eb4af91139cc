"""A teacher on a server, for classes and functions: logprobs, hints, refusals, absence, next life."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from atroposlib.envs.function_env.env import environment
from atroposlib.envs.runtime.process import run_process
from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.envs.teaching import teacher as teaching
from atroposlib.envs.teaching.teacher_rows import answer_start
from atroposlib.errors import AtroposError, ConfigError, TeacherUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.fake_shapes import fake_logprob
from atroposlib.testing.tiny import char_tokenizer
from tests.envs.toys import ToyEnv, eventually, toy_env
from tests.serving import WAIT_S

pytestmark = pytest.mark.filterwarnings("ignore:inference on this machine")


@pytest.fixture
def big():
    return FakeInference()


@pytest.fixture
def teacher_of(big, tokenizer_dir):
    with big.running() as url:
        yield lambda **fields: TeacherSettings(
            base_url=f"{url}/v1", tokenizer=tokenizer_dir, **fields
        )


def saved(env):
    return [json.loads(line) for line in env._atropos.group_file.path.read_text().splitlines()]


async def groups_of(env, count=1):
    env._atropos.begin_process()
    env._atropos.n_groups_to_process = count
    assert await run_process(env._atropos) == count
    return saved(env)


def class_env(toy_config, url, tmp_path, teacher, kind=ToyEnv):
    env_config = toy_config.model_copy(
        update={"teacher": teacher, "data_path_to_save_groups": str(tmp_path / "g.jsonl")}
    )
    server = APIServerConfig(base_url=url, server_type="vllm", model_name="fake")
    return kind(env_config, [server])


@pytest.mark.parametrize(
    ("server_type", "shapes"),
    [
        ("vllm", "generate"),
        ("vllm", "scale_out"),
        ("vllm", "completions"),
        ("sglang", "sglang"),
    ],
)
async def test_every_group_of_a_class_carries_the_teachers_logprobs(
    toy_config, inference_url, tmp_path, big, teacher_of, server_type, shapes
):
    big.shapes = frozenset({shapes})
    teacher = teacher_of(top_k=3, server_type=server_type)
    env = class_env(toy_config, inference_url, tmp_path, teacher)
    groups = await groups_of(env, 2)
    for group in groups:
        for tokens, mask, ids, logprobs in zip(
            group["tokens"],
            group["masks"],
            group["distill_token_ids"],
            group["distill_logprobs"],
        ):
            start = answer_start(mask)
            assert 0 < start and ids[:start] == [[]] * start
            for token, some, their in zip(tokens[start:], ids[start:], logprobs[start:]):
                assert some == list(dict.fromkeys([token, 0, 1, 2]))
                assert their == [fake_logprob(i) for i in some]
    assert env._atropos.teacher.figures()["teacher_groups"] == 2


class Hinted(ToyEnv):
    def teacher_prompt(self, item):
        return [{"role": "user", "content": f"the answer to {item['id']}"}]


async def test_a_hint_is_read_by_the_teacher_and_not_by_the_student(
    toy_config, inference_url, tmp_path, fake, big, teacher_of
):
    env = class_env(toy_config, inference_url, tmp_path, teacher_of(), kind=Hinted)
    (group,) = await groups_of(env)
    tokenizer = char_tokenizer()
    read = [body["prompt"]["prompt_token_ids"] for _, body in big.requests]
    for tokens, mask, ids in zip(group["tokens"], group["masks"], group["distill_token_ids"]):
        start = answer_start(mask)
        (ours,) = [own for own in read if own[-len(tokens[start:]) :] == tokens[start:]]
        hint = ours[: len(ours) - len(tokens[start:])]
        assert tokenizer.decode(hint) == "<|user|>the answer to item-1<|end|><|assistant|>"
        assert ids == [*[[]] * start, *([token] for token in tokens[start:])]
    assert "the answer to" not in str([tokenizer.decode(row) for row in group["tokens"]])


def function_env(url, tmp_path, **fields):
    def hint(task):
        return f"it is {task['gold']}"

    @environment(
        [{"ask": "a", "gold": "4"}, {"ask": "b", "gold": "5"}],
        teacher_prompt=hint,
        servers=APIServerConfig(base_url=url, server_type="vllm", model_name="fake"),
        group_size=2,
        use_wandb=False,
        ensure_scores_are_not_same=False,
        eval_fraction=0.0,
        tokenizer_name=fields.pop("tokenizer_name"),
    )
    async def asks(task, model):
        await model.chat(task["ask"])
        return 1.0

    config, servers = asks.config_init()
    return asks(config.model_copy(update=fields), servers)


async def test_a_function_has_a_teacher_that_is_the_policy_itself_with_a_hint(
    fake, inference_url, tmp_path, tokenizer_dir
):
    env = function_env(
        inference_url,
        tmp_path,
        tokenizer_name=tokenizer_dir,
        teacher=TeacherSettings(base_url="policy"),
        data_path_to_save_groups=str(tmp_path / "g.jsonl"),
    )
    (group,) = await groups_of(env)
    asked = [body for _, body in fake.requests if body.get("prompt_logprobs") is not None]
    decode = char_tokenizer().decode
    shown = [decode(body["prompt"]["prompt_token_ids"]) for body in asked]
    assert len(shown) == 2 and all(text.startswith("<|user|>it is ") for text in shown)
    assert all(any(row) for row in group["distill_token_ids"])


async def test_a_group_that_has_a_teacher_already_is_left_alone(
    toy_config, inference_url, tmp_path, big, teacher_of
):
    env = class_env(toy_config, inference_url, tmp_path, teacher_of())
    group = {
        "tokens": [[5, 6], [5, 7]],
        "masks": [[-100, 6], [-100, 7]],
        "scores": [1.0, 0.0],
        "distill_token_ids": [[[], [6]], [[], [7]]],
        "distill_logprobs": [[[], [-1.0]], [[], [-2.0]]],
    }
    (kept,) = await env.handle_send_to_api(group, "item-1", do_send_to_api=False)
    assert kept["distill_logprobs"] == group["distill_logprobs"] and not big.requests
    await env.close()


async def test_groups_that_are_dropped_cost_the_teacher_nothing(
    toy_config, inference_url, tmp_path, big, teacher_of
):
    env = class_env(toy_config, inference_url, tmp_path, teacher_of())
    group = {"tokens": [[5, 6], [5, 7]], "masks": [[-100, 6], [-100, 7]], "scores": [1.0, 1.0]}
    assert await env.handle_send_to_api(group, "item-1", do_send_to_api=False) == []
    assert not big.requests and env._atropos.group_stats.dropped["same_scores"] == 1
    await env.close()


async def test_a_teacher_of_another_vocabulary_is_refused_before_the_first_rollout(
    toy_config, inference_url, tmp_path, fake, teacher_of
):
    char_tokenizer("xyz").save_pretrained(tmp_path / "xyz")
    teacher = teacher_of().model_copy(update={"tokenizer": str(tmp_path / "xyz")})
    env = class_env(toy_config, inference_url, tmp_path, teacher)
    with pytest.raises(ConfigError, match="it cannot judge what the trained model writes"):
        await groups_of(env)
    assert not fake.requests


async def test_a_teacher_that_refuses_ends_the_run_with_a_typed_error_and_sends_nothing(
    toy_config, inference_url, tmp_path, big, teacher_of
):
    big.context = 4
    env = class_env(toy_config, inference_url, tmp_path, teacher_of())
    with pytest.raises(AtroposError, match="toy: teacher failed on item"):
        await groups_of(env)
    assert not (tmp_path / "g.jsonl").exists()
    assert env._atropos.group_stats.dropped["hook_failed"] > 0


async def impatient(teacher, timeout_s):
    """Connect first: loading a tokenizer may take longer."""
    await teacher.prepare()
    teacher.settings = teacher.settings.model_copy(update={"timeout_s": timeout_s})


async def test_a_silent_teacher_is_waited_for_by_name_within_its_bound(
    toy_config, inference_url, tmp_path, big, teacher_of, monkeypatch
):
    monkeypatch.setattr(teaching, "NAMED_AFTER_S", 0.01)
    env = class_env(toy_config, inference_url, tmp_path, teacher_of())
    teacher, reasons = env._atropos.teacher, []
    await impatient(teacher, 0.3)
    teacher.student.on_wait = reasons.append
    big.hold = threading.Event()
    group = {"tokens": [[5, 6], [5, 7]], "masks": [[-100, 6], [-100, 7]], "scores": [1.0, 0.0]}
    with pytest.raises(
        TeacherUnavailable, match="did not come within 0.3 s: start its server"
    ):
        await env.handle_send_to_api(group, "item-1", do_send_to_api=False)
    assert reasons[0].startswith("the teacher http://") and reasons[0].endswith(
        "logprobs of 2 sequences"
    )
    assert reasons[-1] is None
    assert env._atropos.group_stats.dropped == {"unsent": 1}
    big.hold.set()
    await env.close()


async def test_an_absent_teacher_is_asked_again_until_it_answers(
    toy_config, inference_url, tmp_path, big, teacher_of
):
    big.health_next.extend([False])
    env = class_env(toy_config, inference_url, tmp_path, teacher_of())
    (group,) = await groups_of(env)
    assert group["distill_token_ids"] is not None


async def test_after_a_teacher_was_absent_the_next_life_sends_the_same_samples(
    api, fake, big, inference_url, teacher_of, tmp_path, tokenizer_dir
):
    """Nothing sampled is lost and no group is sent without its teacher."""
    client = api.trainer(batch_size=2, num_steps=1)

    def env_of():
        return function_env(
            inference_url,
            tmp_path,
            tokenizer_name=tokenizer_dir,
            teacher=teacher_of(),
            rollout_server_url=api.url,
            journal_dir=str(tmp_path / "journal"),
            total_steps=1,
            max_num_workers=1,
            data_path_to_save_groups=None,
        )

    first = env_of()
    await impatient(first._atropos.teacher, 0.3)
    big.healthy, big.hold = False, threading.Event()
    with pytest.raises(TeacherUnavailable):
        await asyncio.wait_for(first.env_manager(), WAIT_S)
    sampled = len([body for _, body in fake.requests if "prompt_logprobs" not in body])
    assert sampled == 2
    big.healthy = True
    big.hold.set()
    big.hold = None
    second = env_of()
    serving = asyncio.ensure_future(second.env_manager())
    claimed = await asyncio.to_thread(client.claim, wait_s=30.0)
    (group,) = claimed.batch
    assert all(any(row) for row in group.distill_token_ids)
    await asyncio.to_thread(client.announce_version, 1)
    assert await asyncio.to_thread(client.ack, claimed)
    await asyncio.wait_for(serving, WAIT_S)
    assert second._atropos.journal.counts["used_samples"] == 2


async def test_the_wait_for_a_teacher_is_in_the_status_of_the_run(
    api, big, toy_config, inference_url, teacher_of, monkeypatch
):
    monkeypatch.setattr(teaching, "NAMED_AFTER_S", 0.01)
    api.trainer(batch_size=2, num_steps=1)
    env = toy_env(toy_config, inference_url, rollout_server_url=api.url, teacher=teacher_of())
    big.hold = threading.Event()
    serving = asyncio.ensure_future(env.env_manager())
    await eventually(lambda: "the teacher" in str(env._atropos.serving.waiting_on))
    big.hold.set()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
