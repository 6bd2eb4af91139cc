"""Opponents from earlier versions: the choice, its record, and games against a server's versions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs import environment
from atroposlib.envs.function_env.opponents import Record, choose_version, draw_for
from atroposlib.testing.tiny import ASCII_ALPHABET
from tests.envs.function_env.function_toys import groups_in, made


def card(name):
    return {"id": name, "object": "model"}


@pytest.mark.parametrize(
    ("rule", "draw", "version"),
    [
        ("age", 0.0, 2),
        ("age", 0.49, 4),
        ("age", 0.99, 8),
        # weights (1 - 0.9)^2 -> 0.05, (1 - 0.5)^2 = 0.25, (1 - 0)^2 = 1: of 1.3
        ("win_rate", 0.03, 2),
        ("win_rate", 0.05, 4),
        ("win_rate", 0.22, 4),
        ("win_rate", 0.24, 8),
    ],
)
def test_version_of_a_draw(rule, draw, version):
    scores = {2: 0.9, 8: 0.0}  # version 4 has not been played
    assert choose_version([8, 2, 4], rule, scores, draw) == version


@given(
    st.sets(st.integers(0, 50)),
    st.sampled_from(["age", "win_rate"]),
    st.dictionaries(st.integers(0, 50), st.floats(-2, 3)),
    st.floats(0, 1, exclude_max=True),
)
def test_choice_is_of_the_pool_and_of_an_empty_pool_none(pool, rule, scores, draw):
    version = choose_version([*pool], rule, scores, draw)
    assert version in pool if pool else version is None


def test_samples_of_a_task_meet_one_version_and_tasks_meet_all():
    versions = [
        choose_version([1, 2, 3], "age", {}, draw_for(0, f"{i}@0", "opponent"))
        for i in range(300)
    ]
    assert versions == [
        choose_version([1, 2, 3], "age", {}, draw_for(0, f"{i}@0", "opponent"))
        for i in range(300)
    ]
    assert all(70 < count < 130 for count in Counter(versions).values())


def test_record_has_mean_scores_and_goes_on_from_its_state():
    record = Record()
    record.note({"opponent/version": 3.0, "won": 1.0}, ["opponent"], "won")
    record.note({"opponent/version": 3.0, "won": 0.0}, ["opponent"], "won")
    record.note({"opponent/fallback": 1.0, "won": 1.0}, ["opponent"], "won")
    record.note({"opponent/version": 5.0}, ["opponent"], "won")
    assert record.scores() == {3: 0.5}
    later = Record()
    later.restore(record.state())
    assert later == record


@environment([{"id": "a"}, {"id": "b"}], group_size=2, total_steps=2, max_num_workers=1)
async def duel(task, model):
    model.role = "white"
    opponent = await model.endpoint("opponent", version="pool")
    reply = await model.chat("play")
    answer = await opponent.chat([*reply.messages, {"role": "user", "content": "reply"}])
    return float(answer == "reply")


@pytest.fixture
def duelled(inference_url, tmp_path):
    async def play(**settings):
        env = made(duel, inference_url, tmp_path, **settings, alphabet=ASCII_ALPHABET)
        await env.process_manager()
        return env, groups_in(tmp_path)

    return play


def last_user(prompt, index):
    return prompt.split("<|user|>")[-1].split("<|end|>")[0]


async def test_opponent_is_an_earlier_version_and_its_tokens_are_not_trained(fake, duelled):
    fake.reply = last_user
    fake.cards = [card("fake"), card("fake@3")]
    fake.reports_spans = fake.reports_header = False
    env, groups = await duelled()
    named = [body for path, body in fake.requests if body.get("model") == "fake@3"]
    assert len(named) == 4 and len(fake.requests) == 8
    for group in groups:
        texts = {env.tokenizer.decode([t for t in row if t != -100]) for row in group["masks"]}
        assert texts == {"play<|end|>"}
        metrics = group["metadata"]["metrics"]
        assert metrics == {"reward": 1.0, "opponent/version": 3.0, "opponent/fallback": 0.0}
        assert [row["role"] for row in group["metadata"]["rows"]] == ["white"] * 2
        (told, _) = group["metadata"]["untrained"]
        assert told == {"opponent": [{"role": "assistant", "content": "reply"}]}
    assert env.rollouts.record.scores() == {3: 1.0}
    # The opponent's tokens are those of a helper, as a judge's.
    states = {state for _, state in env._atropos.account._counts}
    assert "helper" in states


async def test_without_a_pool_the_present_version_plays_and_the_metrics_name_it(
    fake, duelled, caplog
):
    fake.reply = last_user
    _, groups = await duelled()
    assert {body.get("model") for _, body in fake.requests} <= {None, "fake"}
    for group in groups:
        assert group["metadata"]["metrics"] == {"reward": 1.0, "opponent/fallback": 1.0}
    assert caplog.text.count("no inference server lists an earlier version yet") == 1


async def test_further_server_gives_its_version(fake, duelled):
    fake.reply = last_user
    from atroposlib.testing.fake_inference import FakeInference

    second = FakeInference(reply=last_user)
    second.cards = [card("frozen@40")]
    with second.running() as url:
        _, groups = await duelled(opponent_urls=[f"{url}/v1"])
    assert {body["model"] for _, body in second.requests} == {"frozen@40"}
    assert groups[0]["metadata"]["metrics"]["opponent/version"] == 40.0
