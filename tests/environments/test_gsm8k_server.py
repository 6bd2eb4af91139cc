"""GSM8K: sources of the problems, rewards and recorded evaluations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from atroposlib.environments.common.length_penalties import brevity_scores
from atroposlib.environments.gsm8k_server import GSM8kConfig, GSM8kEnv, load_problems
from atroposlib.envs.base import APIServerConfig
from atroposlib.errors import DatasetUnavailable
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,:?+-=\n\\{}"
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k_test.jsonl"
REAL = Path(os.environ.get("GSM8K_TEST_JSONL", BESIDE))


@pytest.fixture
def data(tmp_path):
    rows = [
        {
            "question": f"what is {i} + {i}?",
            "answer": f"add <<{i}+{i}={2 * i}>>\n#### {2 * i:,}",
        }
        for i in range(600, 605)
    ]
    for split in ("train", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"gsm8k_{split}.jsonl").write_text(lines)
    return tmp_path


def test_problems_come_from_a_directory_or_a_file(data):
    train, test = load_problems(str(data))
    assert train[0] == {"id": "train/0", "question": "what is 600 + 600?", "answer": "1200"}
    assert test[0]["id"] == "test/0"
    alone, same = load_problems(str(data / "gsm8k_test.jsonl"))
    assert [p["answer"] for p in alone] == [p["answer"] for p in same]


def test_missing_data_raise_an_error_with_instructions_and_are_not_replaced_by_toy_data(
    tmp_path,
):
    with pytest.raises(DatasetUnavailable, match="dataset_path"):
        load_problems(str(tmp_path / "absent.jsonl"))
    with pytest.raises(DatasetUnavailable, match="train.jsonl"):
        load_problems(str(tmp_path))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "q", "answer": "no number"}\n')
    with pytest.raises(DatasetUnavailable, match="#### n"):
        load_problems(str(bad))


def test_an_unreachable_hub_is_an_error_with_instructions():
    pytest.importorskip("datasets")
    with pytest.raises(DatasetUnavailable, match="--env.dataset_path"):
        load_problems(None)


@pytest.mark.parametrize(
    ("rewards", "lengths", "scores"),
    [
        ([1.0, -1.0, -1.0], [10, 10, 99], [1.0, -1.0, -1.0]),
        ([-1.0, -1.0], [10, 99], [-1.0, -1.0]),
        ([1.0] * 5, [1, 50, 75, 100, 120], [1.0, 1.0, 0.5, 0.0, 0.0]),
    ],
)
def test_brevity_is_rewarded_when_all_answers_are_right(rewards, lengths, scores):
    assert brevity_scores(rewards, lengths, 100) == scores


def environment(url, data, **changes):
    server = APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="fake")
    config = GSM8kConfig(
        use_wandb=False, dataset_path=str(data), group_size=4, max_token_length=512, **changes
    )
    env = GSM8kEnv(config, server)
    env.tokenizer = char_tokenizer()
    return env


def fake_of(reply):
    return FakeInference(reply=reply)


async def test_right_answers_score_one_and_wrong_answers_minus_one(data, monkeypatch):
    # The fake's vocabulary has no backslash, so the verdict is scripted by the text.
    fake = fake_of(lambda prompt, i: "the answer is 7" if i % 2 else "i do not know this")
    with fake.running() as url:
        env = environment(url, data, include_messages=True)
        await env.setup()
        original = env.verifier.check

        async def check(text, gold):
            return await original(f"\\boxed{{{gold if '7' in text else 0}}}", gold)

        env.verifier.check = check
        item = await env.get_next_item()
        group, _ = await env.collect_trajectories(item)
        await env.close()
    assert group["scores"] == [-1.0, 1.0, -1.0, 1.0]
    assert group["metadata"]["metrics"] == {"percent_correct": 0.5}
    assert group["messages"][1][-1] == {"role": "assistant", "content": "the answer is 7"}
    assert fake.requests[0][1][
        "max_tokens" if "max_tokens" in fake.requests[0][1] else "sampling_params"
    ]


async def test_answers_too_short_to_train_on_are_drawn_again_once(data):
    replies = iter(
        ["no", "a long enough answer", "no", "a long enough answer"]
        + ["another long answer"] * 4
    )
    fake = fake_of(lambda prompt, i: next(replies))
    with fake.running() as url:
        env = environment(url, data)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        assert len(group["tokens"]) == 4
        replies = iter(["no"] * 8)
        assert await env.collect_trajectories(await env.get_next_item()) == (None, [])
        await env.close()


async def test_evaluation_records_its_temperature_and_uses_eval_slots(data, tmp_path):
    fake = fake_of(lambda prompt, i: "no number here at all")
    with fake.running() as url:
        env = environment(
            url, data, data_dir_to_save_evals=str(tmp_path / "out"), eval_problems=3
        )
        await env.setup()
        await env.evaluate()
        server = env.server.servers[0]
        assert (len(server.eval_request_timings), len(server.request_timings)) == (3, 0)
        await env.close()
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert written["config_general"]["generation_parameters"]["temperature"] == 0.6
    assert "0.6" in json.dumps(fake.requests[0][1])
    assert written["results"]["all"] == {"percent_correct": 0.0, "unjudged": 0}


async def test_an_answer_that_could_not_be_checked_is_not_scored(data, tmp_path):
    fake = fake_of(lambda prompt, i: "an answer nobody can check")
    with fake.running() as url:
        env = environment(url, data, data_dir_to_save_evals=str(tmp_path / "out"))
        await env.setup()

        async def check(text, gold):
            return None

        env.verifier.check = check
        assert await env.collect_trajectories(await env.get_next_item()) == (None, [])
        await env.evaluate()
        await env.close()
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert written["results"]["all"] == {"percent_correct": 0.0, "unjudged": 5}
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 5 and json.loads(lines[0])["reward"] is None


@pytest.mark.skipif(not REAL.is_file(), reason="no GSM8K file: GSM8K_TEST_JSONL names one")
def test_every_gold_answer_is_parsed_as_a_number():
    from atroposlib.text.answers import as_number

    problems, _ = load_problems(str(REAL))
    assert len(problems) == 1319
    assert all(as_number(p["answer"]) is not None for p in problems)
