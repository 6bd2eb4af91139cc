"""Preferences: parsing of verdicts and scores of pairs."""

from __future__ import annotations

import pytest

from atroposlib.environments import rlaif_server as rlaif
from atroposlib.environments.rlaif_server import JudgeError, RlaifEnv
from atroposlib.testing.fake_inference import FakeInference


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("A is calmer. Verdict: A", 1.0),
        ("Verdict: A? No. **Verdict:** B", 0.0),
        ("verdict - tie", 0.5),
        ("I like A better", None),
        ("Verdict: Apples", None),
        ("", None),
    ],
)
def test_the_last_verdict_is_parsed_and_a_missing_one_is_none(text, share):
    assert rlaif.verdict(text) == share


def test_a_judge_that_always_prefers_the_first_reply_gives_no_preference():
    assert rlaif.win_rate([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == 0.5
    assert rlaif.win_rate([1.0, 1.0, None], [0.0, 0.5, 0.0]) == pytest.approx(11 / 12)
    assert rlaif.win_rate([1.0], [0.0]) == 1.0


@pytest.mark.parametrize("votes", [([], [0.0]), ([1.0], [None, None])])
def test_a_missing_verdict_is_an_error_and_not_a_score(votes):
    with pytest.raises(rlaif.JudgeError, match="judge_error"):
        rlaif.win_rate(*votes)


@pytest.mark.parametrize(
    ("cut_off", "scores"),
    [
        ([False, False], None),
        ([True, False], [-0.5, 0.5]),
        ([False, True], [0.5, -0.5]),
        ([True, True], [0.0, 0.0]),
    ],
)
def test_an_unfinished_reply_loses_without_a_judge(cut_off, scores):
    assert rlaif.scores_by_length(cut_off) == scores


@pytest.mark.parametrize(
    ("turns", "read"),
    [
        ([("user", "Hi?"), ("assistant", "Hello."), ("user", "More")], True),
        ([("user", "Hi?")], False),
        ([("assistant", "Hello."), ("user", "Hi")], False),
        ([("user", " "), ("assistant", "Hello.")], False),
        ([("user", "Hi?"), ("assistant", "x" * 21)], False),
    ],
)
def test_only_a_short_first_exchange_is_used_as_a_question(turns, read):
    row = {"conversation": [{"role": role, "content": text} for role, text in turns]}
    found = rlaif.question("0", row, max_chars=20)
    assert found == ({"id": "0", "question": "Hi?", "answer": "Hello."} if read else None)


def chats(count):
    return [
        {
            "conversation": [
                {"role": "user", "content": f"question {i}", "language": "English"},
                {"role": "assistant", "content": "a recorded answer", "language": "English"},
            ],
            "model": "m",
            "turn": 1,
        }
        for i in range(count)
    ]


def opinionated(prompt, i):
    """The second of two replies is calm; the judge prefers the calm one."""
    if "[Answer A]" not in prompt:
        return "be calm, all is well" if i else "panic now, all of you"
    first = prompt.index("calm", prompt.index("[Answer A]")) < prompt.index("[Answer B]")
    return "Verdict: A" if first else "Verdict: B"


async def test_the_reply_that_the_judge_prefers_in_both_orders_wins(
    make_env, write_rows, groups_made
):
    path = write_rows("chats.jsonl", chats(4))
    fake = FakeInference(reply=opinionated)
    with fake.running() as url:
        env = make_env(
            RlaifEnv, url, dataset_path=path, votes_per_order=3, character_share=1.0
        )
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [-0.5, 0.5]
    assert group["metadata"]["metrics"]["decisiveness"] == 1.0
    judged = [body for path, body in fake.requests if path == "/v1/chat/completions"]
    assert [body["n"] for body in judged] == [3, 3]
    asked = [body["messages"][0]["content"] for body in judged]
    assert len(set(asked)) == 2 and all("warm and plain-spoken" in text for text in asked)
    assert "Answer in this character" in env.tokenizer.decode(group["tokens"][0])


async def test_a_truncated_reply_loses_without_a_call_to_the_judge(make_env, write_rows):
    path = write_rows("chats.jsonl", chats(4))
    fake = FakeInference(reply=lambda prompt, i: "on and on " * 20 if i else "short, and done")
    with fake.running() as url:
        env = make_env(RlaifEnv, url, dataset_path=path, max_reply_tokens=50)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [0.5, -0.5]
    assert "/v1/chat/completions" not in fake.paths


async def test_missing_verdicts_are_an_error_in_training_and_counted_in_evaluation(
    make_env, write_rows, evaluated
):
    path = write_rows("chats.jsonl", chats(4))
    with FakeInference(reply=lambda prompt, i: "both are fine with me").running() as url:
        env = make_env(RlaifEnv, url, dataset_path=path)
        await env.setup()
        with pytest.raises(JudgeError):
            await env.collect_trajectories(await env.get_next_item())
        metrics, samples = await evaluated(env)
    assert metrics == {"judge_errors": 2, "questions": 2}
    assert {sample["outcome"] for sample in samples} == {"judge_error"}


async def test_a_separate_judge_is_called_at_its_configured_address(make_env, write_rows):
    path = write_rows("chats.jsonl", chats(4))
    model, judge = FakeInference(reply=opinionated), FakeInference(reply=opinionated)
    with model.running() as url, judge.running() as judge_url:
        env = make_env(
            RlaifEnv,
            url,
            dataset_path=path,
            judge_base_url=f"{judge_url}/v1",
            judge_model_name="judge",
        )
        await env.setup()
        await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert "/v1/chat/completions" not in model.paths
    assert {body["model"] for _, body in judge.requests} == {"judge"}
