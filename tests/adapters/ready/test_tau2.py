"""Tasks of the real package: their own actions, other replies, a customer, and failures."""

from __future__ import annotations

import sys

import pytest

from atroposlib.environments import tau2_server
from atroposlib.environments.common.judge import judging
from atroposlib.environments.common.tau2_domains import offered_tasks, package, tasks_by_id
from atroposlib.environments.tau2_server import GREETING, gold, tau2
from atroposlib.envs.function_env.card import ScriptedSession, play
from atroposlib.envs.function_env.rollout_model import Model
from atroposlib.errors import ConfigError, InferenceError
from atroposlib.testing.fake_inference import FakeInference
from tests.environments.cases import ADVERSARIAL

PACKAGE = "tau2"
# Tasks of a split, and those that doing nothing does not solve.
COUNTS = {
    ("mock", "base"): (9, 7),
    ("airline", "test"): (20, 14),
    ("retail", "test"): (40, 38),
}


def rows_of_mock():
    return offered_tasks("mock", "base")


async def score(row, replies, **settings):
    return (await play(tau2, row, replies, **settings))[0].score


@pytest.mark.slow
@pytest.mark.parametrize(("domain", "split"), COUNTS)
async def test_the_own_actions_of_tasks_pass_and_silence_does_not(domain, split):
    rows = offered_tasks(domain, split)
    assert (len(tasks_by_id(domain, split)), len(rows)) == COUNTS[domain, split]
    for row in rows[:: 1 + len(rows) // 10]:  # a replay is 0.3 s of CPU
        assert await score(row, gold(row)) == 1.0, row
        assert await score(row, "") == 0.0, row


@pytest.mark.parametrize("reply", ADVERSARIAL)
async def test_adversarial_replies_and_the_actions_of_other_tasks_earn_nothing(reply):
    rows = rows_of_mock()
    for row, other in zip(rows, rows[1:] + rows[:1]):
        assert await score(row, [ADVERSARIAL[reply]] * 3) == 0.0
        if gold(row)[0] != gold(other)[0]:
            assert await score(row, gold(other)) == 0.0


async def test_in_telecom_the_model_acts_on_the_phone_too_if_there_is_no_customer():
    rows = offered_tasks("telecom", "test")[:8]
    for row in rows:
        assert await score(row, gold(row), domain="telecom") == 1.0, row
        assert await score(row, "Done.", domain="telecom") == 0.0, row


async def test_actions_without_a_last_message_are_cut_and_earn_nothing():
    row = rows_of_mock()[0]
    actions = gold(row)[:-1]
    reward, _ = await play(tau2, row, actions, max_turns=len(actions))
    assert reward.score == 0.0 and reward.metrics["truncated"] == 1.0


async def test_wrong_calls_get_the_packages_error_and_powers_are_not_computed():
    row = offered_tasks("retail", "test")[0]
    calls = [
        ("get_order_details", {"order_id": "#W0"}),
        ("get_order_details", {"number": 1}),
        ("calculate", {"expression": "9**9**9**9"}),
        ("calculate", {"expression": "6 * 7"}),
    ]
    replies = [tau2_server.tool_call(name, **given) for name, given in calls]
    _, model = await play(tau2, row, replies)
    texts = [one["content"] for one in model.replies[-1].messages if one["role"] == "tool"]
    assert texts[0] == "Error: Order not found" and "unexpected keyword" in texts[1]
    assert texts[2].startswith("error: ") and texts[3] == "42.0"


# --- with a customer ----------------------------------------------------------------------


async def served(row, replies, customer, **settings):
    config = tau2.env_config_cls(**settings)
    model = Model(ScriptedSession(replies), "eval", 0.0, 512, open_endpoint=None)
    return await tau2.definition.function(row, model, config, customer), model


async def test_a_customer_on_another_server_asks_hears_and_ends_the_conversation():
    row = rows_of_mock()[0]
    *actions, last = gold(row)

    def customer(prompt, index):
        return "###STOP###" if "Which title?" in prompt else "I need a task."

    fake = FakeInference(reply=customer)
    with fake.running() as url:
        config = tau2.env_config_cls(domain="mock", user_base_url=f"{url}/v1")
        async with judging(config, "user") as server:
            reward, model = await served(row, [*actions, "Which title?"], server)
            early, _ = await served(row, ["Which title?", *actions, last], server)
    assert (reward.score, early.score) == (1.0, 0.0)
    asked = [one["content"] for one in model.replies[-1].messages if one["role"] == "user"]
    assert asked == ["I need a task."]
    seen = fake.requests[0][1]["messages"]
    assert "Important Meeting" in seen[0]["content"] and seen[1]["content"] == GREETING
    assert "Important Meeting" not in model.replies[0].messages[0]["content"]


def acts_alone(row):
    actions = tau2_server.found(row)[1].evaluation_criteria.actions
    return all(action.requestor == "user" for action in actions)


async def test_in_telecom_the_customer_has_tools_and_the_model_has_not_those():
    row = next(row for row in offered_tasks("telecom", "test") if acts_alone(row))
    *actions, _ = gold(row)
    customer = ScriptedSession(["It is broken.", *actions, "Works now.", "###STOP###"])
    reward, model = await served(row, ["Try it.", "Anything else?"], customer)
    assert reward.score == 1.0
    assert [one["role"] for one in model.replies[-1].messages[1:]] == ["user", "assistant"] * 2
    customer = ScriptedSession(["It is broken.", "###STOP###"])
    reward, _ = await served(row, [*actions, "Done"], customer)
    assert reward.score == 0.0


async def test_a_conversation_before_the_task_goes_on():
    row = next(row for row in rows_of_mock() if "message_history" in row["id"])
    customer = ScriptedSession(["Mark it as completed.", "###STOP###"])
    reward, model = await served(row, gold(row), customer)
    assert reward.score == 1.0
    roles = [one["role"] for one in model.replies[0].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]


@pytest.mark.parametrize("said", ["", "<think>hm</think>", "###STOP###"])
async def test_a_customer_without_a_question_is_a_failure_and_no_score(said):
    with pytest.raises(InferenceError, match="--env.user_base_url"):
        await served(rows_of_mock()[0], ["Hello"], ScriptedSession([said]))


async def test_a_customers_server_that_refuses_is_a_failure_and_no_score():
    fake = FakeInference()
    fake.fail_next.extend([401] * 99)
    with fake.running() as url:
        config = tau2.env_config_cls(domain="mock", user_base_url=f"{url}/v1")
        async with judging(config, "user") as server:
            with pytest.raises(Exception, match="401"):
                await served(rows_of_mock()[0], ["Hello"], server)


def test_a_missing_package_is_named_with_both_commands(monkeypatch):
    monkeypatch.setitem(sys.modules, "tau2.registry", None)
    with pytest.raises(ConfigError, match=r"'atropos-rl\[tau2\]' && pip install --no-deps"):
        package("registry")


@pytest.mark.slow
async def test_a_tiny_model_serves_a_group(sampled):
    groups = await sampled(tau2, domain="mock", max_tokens=16, max_token_length=4096)
    assert groups[0]["scores"] == [0.0] * 4
    assert groups[0]["metadata"]["source"]["env_id"] == "mock"
