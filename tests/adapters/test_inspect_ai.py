"""Tasks of the real package: scores, failures, a judge, several rollouts in one eval."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from atroposlib.adapters import inspect_ai as adapter
from atroposlib.adapters.inspect_ai import InspectConfig
from atroposlib.errors import ConfigError, RolloutError
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "inspect_ai"
# The package leaves streams of failed evals open, and calls tenacity by an old name.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning"),
]
TASKS = Path(__file__).with_name("toys") / "inspect_tasks.py"


@pytest.fixture
def played(make_env):
    """Rollouts of the first sample at once, on a server that gives one reply."""

    async def play(name, reply="Paris", times=1, **settings):
        fake = FakeInference(reply=lambda prompt, i: reply)
        with fake.running() as url:
            env = make_env(
                adapter.inspect_ai, url, env_id=f"{TASKS}@{name}", eval_fraction=0, **settings
            )
            await env.setup()
            try:
                item = env.cursor.next()
                while item["id"] != "France":
                    item = env.cursor.next()
                runs = (env.rollouts.train(item) for _ in range(times))
                return await asyncio.gather(*runs), fake
            finally:
                await env.close()

    return play


async def test_a_group_of_the_tiny_model_has_logprobs_and_its_source(sampled):
    [group, *_] = await sampled(adapter.inspect_ai, env_id=f"{TASKS}@capitals", max_tokens=4)
    source = group["metadata"]["source"]
    assert source["env_id"].endswith("@capitals") and source["package"].startswith(
        "inspect-ai"
    )
    assert source["sample"] in ("France", "Peru", "Kenya")
    assert group["scores"] == [0.0] * 4


async def test_the_first_scorer_is_the_reward_and_all_are_logged(played, capfd):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    rollouts, fake = await played("capitals", times=3)
    for rollout in rollouts:
        assert rollout.reward.score == 1.0
        wanted = {"named": 1.0, "length/chars": 5.0, "length/turns": 1.0, "limited": 0.0}
        assert (
            rollout.reward.metrics == wanted
        )  # the grader is not trained: no reward is its own
        assert len(rollout.rows) == 1
    assert len(fake.requests) == 3
    assert (root.level, root.handlers) == before
    assert capfd.readouterr().out == ""
    [other], _ = await played("capitals", scorer="length/chars", env_kwargs={"system": "Hm."})
    assert other.reward.score == 5.0


async def test_a_failure_of_scorer_or_server_is_raised_and_never_a_score(played):
    with pytest.raises(RolloutError, match="ended as error: .*the scorer fell over"):
        await played("fails")
    with pytest.raises(RolloutError, match="could not convert string to float: 'maybe'"):
        await played("other", env_kwargs={"value": "maybe"})
    with pytest.raises(ConfigError, match="there are"):
        await played("capitals", scorer="wrong")


async def test_a_sample_that_was_not_scored_has_no_score(played):
    [rollout], _ = await played("other")
    assert rollout.reward.score is None and "worded" not in rollout.reward.metrics


async def test_replies_of_a_judge_are_not_trained(played):
    [rollout], fake = await played("judged", reply="GRADE: C")
    assert rollout.reward.score == 1.0 and len(fake.requests) == 2
    assert len(rollout.rows) == 1 and not rollout.seats


async def test_a_cancelled_rollout_leaves_the_others_of_its_eval(make_env):
    fake, asked = FakeInference(reply=lambda prompt, i: "Lima"), asyncio.Event()
    loop, fake.hold = asyncio.get_running_loop(), threading.Event()
    fake.on_request = lambda path, body: loop.call_soon_threadsafe(asked.set)
    with fake.running() as url:
        env = make_env(
            adapter.inspect_ai, url, env_id=f"{TASKS}@capitals", eval_fraction=0, shuffle=False
        )
        await env.setup()
        try:
            items = [env.cursor.next() for _ in range(2)]
            given_up, kept = (asyncio.ensure_future(env.rollouts.train(i)) for i in items)
            await asked.wait()
            given_up.cancel()
            fake.hold.set()
            assert (await kept).reward.score == 1.0
        finally:
            await env.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        (f"{TASKS}@boxed", "its sandbox is docker"),
        (f"{TASKS}@unscored", "no scorer"),
        (f"{TASKS}@nothing", "no task"),
        ("no_package/no_task", "0 tasks"),
        ("", "write FILE.py@TASK"),
    ],
)
def test_a_task_that_cannot_be_used_ends_the_run_before_a_rollout(env_id, message):
    with pytest.raises(ConfigError, match=message):
        adapter.samples(InspectConfig(env_id=env_id))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Where pip would leave a package of tasks, and its metadata with an entry point."""
    site = tmp_path / "site-packages"
    facts = site / "tiny_tasks-1.5.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-tasks\nVersion: 1.5\n")
    (facts / "entry_points.txt").write_text("[inspect_ai]\ntiny_tasks = tiny_tasks\n")
    monkeypatch.syspath_prepend(site)
    return site


def test_a_package_that_cannot_be_imported_is_named_with_what_it_lacks(site):
    with pytest.raises(ConfigError, match="No module named 'tiny_tasks'"):
        adapter.samples(InspectConfig(env_id="tiny_tasks/any"))


def test_the_source_of_a_group_has_the_version_of_the_tasks(site):
    (site / "tiny_tasks").mkdir()
    (site / "tiny_tasks" / "__init__.py").write_text(TASKS.read_text())
    source = adapter.samples(InspectConfig(env_id="tiny_tasks/capitals"))[0]["source"]
    assert source["tasks"] == "tiny-tasks 1.5"
