"""Multiple choice, and text sent unchanged."""

from __future__ import annotations

import pytest

from atroposlib.environments.mcqa_thinking_env import (
    MCQAThinkingEnv,
    question as mcqa_question,
    score as mcqa_score,
)
from atroposlib.environments.sft_loader_server import (
    DataFormat,
    SFTLoaderEnv,
    format_of,
    sequence,
)
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>hm</think> The answer is B", 1.0),
        ("<think>hm</think> the correct answer is: **B**.", 1.0),
        ("<think>the answer is A</think>The answer is (B)", 1.0),
        ("<think>hm</think> The answer is A", -1.0),
        ("<think>hm</think> The answer is B. The answer is B", -1.0),
        ("<think>hm</think> B", -1.0),
        ("The answer is B", -1.0),
        ("<think>a</think><think>b</think> The answer is B", -1.0),
        ("so: <think>hm</think> The answer is B", -1.0),
        ("<think>hm</think> The answer is Bee", -1.0),
        ("<think>hm</think> The answer is a matter of taste", -1.0),
    ],
)
def test_a_choice_is_valid_only_once_and_after_one_reasoning_block(text, score):
    assert mcqa_score(text, "B") == score


@pytest.mark.parametrize("answer", [{"ground_truth": "B"}, {"answer": 1}, {"answer": "b"}])
def test_choices_are_lettered_and_answers_parsed(answer):
    row = {"question": "Sky?", "options": ["red", "blue"], **answer}
    assert mcqa_question("0", row) == {
        "id": "0",
        "text": "Sky?\nA. red\nB. blue",
        "answer": "B",
    }
    shown = {"prompt": "Sky? A: red B: blue", "options": ["red", "blue"], **answer}
    assert mcqa_question("0", shown)["text"] == "Sky? A: red B: blue"
    with pytest.raises(DatasetUnavailable, match="options"):
        mcqa_question("0", {"question": "Sky?", "options": ["red"], **answer})


@pytest.mark.parametrize(
    ("data_format", "row", "text", "trained"),
    [
        (DataFormat.COMPLETION, {"text": "abc"}, "abc<|end|>", "abc<|end|>"),
        (
            DataFormat.PREFIX_COMPLETION,
            {"prefix": "a: ", "completion": "a: b"},
            "a: a: b<|end|>",
            "a: b<|end|>",
        ),
        (
            DataFormat.OAI_FORMAT,
            {
                "messages": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "yes"},
                    {"role": "user", "content": "so"},
                    {"role": "assistant", "content": "no"},
                ]
            },
            "<|user|>hi<|end|><|assistant|>yes<|end|><|user|>so<|end|><|assistant|>no<|end|>",
            "yes<|end|>no<|end|>",
        ),
        (
            DataFormat.SHAREGPT_FORMAT,
            {
                "conversations": [
                    {"from": "system", "value": "be"},
                    {"from": "human", "value": "hi"},
                    {"from": "gpt", "value": "yes"},
                ]
            },
            "<|system|>be<|end|><|user|>hi<|end|><|assistant|>yes<|end|>",
            "yes<|end|>",
        ),
        (
            DataFormat.QUESTION_ANSWER,
            {"question": "1+1? ", "answer": "2"},
            "1+1? 2<|end|>",
            "2<|end|>",
        ),
    ],
)
def test_the_text_format_selects_the_trained_tokens(data_format, row, text, trained):
    tokenizer = char_tokenizer(ASCII_ALPHABET)
    assert format_of({**row, "id": 1}) is data_format
    made = sequence(row, data_format, tokenizer, all_turns=True)
    assert tokenizer.decode(made["tokens"]) == text
    assert tokenizer.decode([m for m in made["masks"] if m != -100]) == trained
    assert all(m in (-100, t) for m, t in zip(made["masks"], made["tokens"]))


async def test_choices_score_one_or_minus_one(make_env, write_rows, groups_made):
    rows = [{"question": "Sky?", "options": ["red", "blue"], "ground_truth": "B"}] * 4
    replies = ["<think>hm</think> The answer is B", "The answer is B, I think"]
    with FakeInference(reply=lambda prompt, i: replies[i]).running() as url:
        env = make_env(
            MCQAThinkingEnv, url, dataset_path=write_rows("q.jsonl", rows), group_size=2
        )
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [1.0, -1.0]
    assert group["messages"][0][1]["content"] == "Sky?\nA. red\nB. blue"


async def test_text_is_sent_in_groups_of_one_without_calling_a_server(
    make_env, write_rows, groups_made
):
    path = write_rows("text.jsonl", [{"text": "abc"}, {"text": "defg"}, {"text": "x" * 99}])
    fake = FakeInference()
    with fake.running() as url:
        env = make_env(SFTLoaderEnv, url, dataset_path=path, max_token_length=50)
        groups = await groups_made(env, 4)
    assert [len(group["tokens"]) for group in groups] == [1] * 4
    assert {env.tokenizer.decode(g["tokens"][0]) for g in groups} == {
        "abc<|end|>",
        "defg<|end|>",
    }
    for group in groups:
        assert group["group_overrides"] == {"group_size": 1, "sft": True}
        assert group["overrides"] == [{"sft": True}] and group["scores"] == [1.0]
    assert fake.requests == []


async def test_text_ends_after_its_epochs_and_is_measured_by_evaluate(
    make_env, write_rows, evaluated
):
    path = write_rows("text.jsonl", [{"text": "abc"}, {"text": "x" * 99}])
    env = make_env(
        SFTLoaderEnv, "http://127.0.0.1:9", dataset_path=path, max_token_length=50, epochs=2
    )
    metrics, _ = await evaluated(env)
    assert metrics == {
        "texts": 2,
        "fits": 0.5,
        "tokens_mean": 52.0,
        "tokens_max": 100,
        "trained_share": 1.0,
    }
    ids = []
    while (item := await env.get_next_item()) is not None:
        ids.append(item["id"])
    assert sorted(ids) == ["0/0", "0/1", "1/0", "1/1"]


async def test_text_in_an_unknown_format_is_reported(make_env, write_rows):
    path = write_rows("text.jsonl", [{"prefix": "abc"}])
    env = make_env(
        SFTLoaderEnv, "http://127.0.0.1:9", dataset_path=path, data_format="prefix_completion"
    )
    with pytest.raises(DatasetUnavailable, match="row 0 has no completion"):
        await env.setup()
    bare = make_env(SFTLoaderEnv, "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="--env.dataset_path"):
        await bare.setup()
    for one in (env, bare):
        await one.close()
