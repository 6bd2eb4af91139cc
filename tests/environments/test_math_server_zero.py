"""Brevity, a base model's answers and GSM8K: tables by hand, then whole groups."""

from __future__ import annotations

import pytest

from atroposlib.environments import math_server_zero as zero
from atroposlib.environments.common.length_penalties import (
    ThresholdLengthPenaltyCalculator,
    ThresholdLengthPenaltyConfig,
)
from atroposlib.environments.gsm8k_server import GSM8kEnv
from atroposlib.environments.math_server_zero import MathZeroEnv
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.text.answers import boxed_answer


@pytest.mark.parametrize(
    ("scores", "lengths", "threshold", "expected"),
    [
        ([1.0] * 5, [1, 50, 75, 100, 120], 0.5, [1.0, 1.0, 0.5, 0.0, 0.0]),
        ([1.0, 1.0], [20, 60], 0.2, [1.0, 0.5]),
        ([1.0, -1.0], [100, 100], 0.5, [1.0, -1.0]),
        ([1.0, 0.999], [100, 100], 0.5, [1.0, 0.999]),
        ([], [], 0.5, []),
    ],
)
def test_length_is_rewarded_only_when_every_answer_is_right(
    scores, lengths, threshold, expected
):
    calculator = ThresholdLengthPenaltyCalculator(ThresholdLengthPenaltyConfig(100, threshold))
    group = {"tokens": [[7] * length for length in lengths], "scores": list(scores)}
    assert calculator.apply_length_penalties(group)["scores"] == pytest.approx(expected)


@pytest.mark.parametrize("threshold", [-0.1, 1.0])
def test_a_length_threshold_outside_the_sequence_is_rejected(threshold):
    with pytest.raises(ConfigError, match="threshold_percentage"):
        ThresholdLengthPenaltyConfig(100, threshold)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        ("2+2 is 4</think> <answer>so \\boxed{4}</answer>", "4"),
        ("2+2 is 4</think>\n<answer>\\boxed{4}", "4"),  # the stop string took the tag
        ("no end of thinking <answer>\\boxed{4}</answer>", None),
        ("a</think>b <answer>\\boxed{4}</answer>", None),  # prose between the tags
        ("a</think><answer>\\boxed{4}</answer> and more", None),
        ("a</think><answer>\\boxed{4}<answer>\\boxed{5}", None),
        ("a<answer>\\boxed{3}</answer></think><answer>\\boxed{4}", None),
        ("a</think><answer>b</think>\\boxed{4}", None),
        ("a</think> the answer is \\boxed{4}", None),
    ],
)
def test_an_answer_is_parsed_only_after_exactly_one_reasoning_block(text, boxed):
    answer = zero.answer_part(text)
    assert (None if answer is None else boxed_answer(answer)) == boxed


@pytest.mark.parametrize(
    ("step", "warmup", "length"), [(0, 100, 40), (50, 100, 70), (100, 100, 100), (0, 0, 100)]
)
def test_the_sequence_length_limit_grows_linearly(step, warmup, length):
    assert zero.length_at(step, 40, 100, warmup) == length
    assert zero.length_at(10**6, 40, 100, warmup) == 100


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "final_answer": "$7$", "difficulty": 3.0},  # DeepMath
        {"problem": "q", "answer": "7", "id": 1},  # AIME, MATH-500
        {"question": "q", "answer": 7},  # AMC23
        {"question": "q", "final_answer": ["$7$"], "answer_type": "Numerical"},  # Olympiad
    ],
)
def test_problems_of_every_data_set_are_parsed(row):
    assert zero.problem("set/0", row) == {"id": "set/0", "problem": "q", "answer": "7"}


def test_an_unavailable_eval_set_is_named_with_its_option(tmp_path):
    (tmp_path / "aime24.jsonl").write_text('{"problem": "q", "answer": "1"}\n')
    assert len(zero.load_eval_sets(["aime24"], str(tmp_path))["aime24"]) == 1
    with pytest.raises(DatasetUnavailable, match=r"math500.*math500\.jsonl.*--env\.eval_sets"):
        zero.load_eval_sets(["aime24", "math500"], str(tmp_path))
    with pytest.raises(ConfigError, match="'aime'.*none of aime24"):
        zero.load_eval_sets(["aime"], str(tmp_path))
    with pytest.raises(ConfigError, match="no folder"):
        zero.load_eval_sets(["aime24"], str(tmp_path / "aime24.jsonl"))
    assert zero.load_eval_sets([], str(tmp_path / "aime24.jsonl")) == {}


GSM8K = [{"question": f"what is {i} + 1?", "answer": f"it is\n#### {i + 1}"} for i in range(6)]


async def test_gsm8k_answers_score_one_or_minus_one(
    make_env, write_rows, groups_made, trained_text
):
    fake = FakeInference(
        reply=lambda prompt, i: f"<think>{'so ' * 3}</think> \\boxed{{{3 if i else 2}}}"
    )
    path = write_rows("rows.jsonl", GSM8K[1:2])  # 1 + 1
    with fake.running() as url:
        env = make_env(GSM8kEnv, url, dataset_path=path, group_size=3, max_token_length=1024)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [1.0, -1.0, -1.0]
    assert group["generation_params"] == {"temperature": 1.0}
    assert trained_text(env, group, 0).endswith("\\boxed{2}<|end|>")


async def test_a_base_model_is_prompted_in_plain_text_and_stopped_after_its_answer(
    make_env, write_rows, groups_made, trained_text
):
    def reply(prompt, i):
        right = "so it is two</think> <answer>\\boxed{2}</answer> User: and 2 + 2?"
        wrong = "so it is two</think> the answer is 2"
        return (right, wrong, "on and on " * 100)[i % 3]

    path = write_rows("train.jsonl", [{"question": "1 + 1?", "final_answer": "2"}])
    fake = FakeInference(reply=reply)
    with fake.running() as url:
        env = make_env(
            MathZeroEnv,
            url,
            dataset_path=path,
            group_size=3,
            start_tok_length=600,
            max_token_length=700,
            length_warmup_steps=10,
        )
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [1.0, -1.0, -1.0]
    assert group["finish_reasons"] == ["stop", "stop", "length"]
    assert group["overrides"] == [{}, {}, {"set_advantage_to_zero": True}]
    assert group["metadata"]["metrics"]["percent_cut_off"] == pytest.approx(1 / 3)
    assert len(group["tokens"][2]) == 600  # the curriculum's length at step 0
    assert trained_text(env, group, 0).endswith("<answer>\\boxed{2}</answer>")
    text = env.tokenizer.decode(group["tokens"][0])
    assert "<|user|>" not in text and text.startswith("Below, a user")


async def test_resampled_rows_keep_their_row_overrides(make_env, write_rows):
    calls = []

    def reply(prompt, i):
        calls.append(i)
        if len(calls) == 1:
            return "no"  # too short to train on: drawn again
        return "cut off " * 200 if len(calls) == 2 else "a whole answer</think>"

    path = write_rows("train.jsonl", [{"question": "1 + 1?", "final_answer": "2"}])
    with FakeInference(reply=reply).running() as url:
        env = make_env(
            MathZeroEnv,
            url,
            dataset_path=path,
            group_size=3,
            start_tok_length=700,
            max_token_length=700,
            eval_sets=[],
        )
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        env.config.mask_too_long_completions = False
        plain, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["finish_reasons"] == ["length", "stop", "stop"]
    assert group["overrides"] == [{"set_advantage_to_zero": True}, {}, {}]
    assert plain["overrides"] is None


async def test_every_eval_set_is_evaluated_on_all_problems(
    make_env, write_rows, evaluated, tmp_path
):
    write_rows("data/train.jsonl", [{"question": "1 + 1?", "final_answer": "2"}])
    write_rows("data/aime24.jsonl", [{"problem": f"{i}?", "answer": str(i)} for i in (2, 3)])
    write_rows("data/math500.jsonl", [{"problem": "x?", "answer": "\\frac{1}{2}"}])
    fake = FakeInference(reply=lambda prompt, i: "so</think><answer>\\boxed{2}</answer>")
    with fake.running() as url:
        env = make_env(
            MathZeroEnv,
            url,
            dataset_path=str(tmp_path / "data"),
            eval_sets=["aime24", "math500"],
            max_token_length=1024,
        )
        metrics, samples = await evaluated(env)
        timings = env.server.servers[0]
        counts = len(timings.eval_request_timings), len(timings.request_timings)
    assert metrics == {
        "aime24_percent_correct": 0.5,
        "math500_percent_correct": 0.0,
        "unjudged": 0,
    }
    assert [sample["set"] for sample in samples] == ["aime24", "aime24", "math500"]
    assert counts == (3, 0)


async def test_setup_names_the_missing_file_of_an_eval_set(make_env, write_rows, tmp_path):
    write_rows("data/train.jsonl", [{"question": "1 + 1?", "final_answer": "2"}])
    env = make_env(MathZeroEnv, "http://127.0.0.1:9", dataset_path=str(tmp_path / "data"))
    with pytest.raises(DatasetUnavailable, match="eval set aime24.*--env.eval_sets"):
        await env.setup()
    await env.close()
