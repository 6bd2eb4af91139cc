"""Exported environments in verifiers itself: rewards, failures, options, the written package."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest

from atroposlib.cli import export
from atroposlib.cli.env_files import load
from atroposlib.envs.function_env.card import play
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "verifiers"
ROOT = Path(__file__).resolve().parents[3]
SUMS = '''
"""Sums with two rewards, a second try, and a task that has no score."""
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

TASKS = [{"id": f"{a}", "a": a, "b": 2} for a in range(1, 5)]


def gold(task):
    return str(task["a"] + task["b"])


CARD = Card("mathematics", "made on the spot", "MIT", gold, best=1.1)


@environment(TASKS, rewards={"exact": 1.0, "first": 0.1}, max_tokens=9, card=CARD, eval_fraction=0.25,
             settings={"kind": "sum"})
async def sums(task, model, config):
    if config.kind == "agent":
        async with await model.openai() as client:
            chat = client.chat.completions
            done = await chat.create(model="x", messages=[{"role": "user", "content": "3?"}])
        return {"exact": float(done.choices[0].message.content == "3"), "first": 0.0}
    first = await model.chat(f"What is {task['a']} + {task['b']}?")
    right = gold(task)
    if first == "crash":
        raise KeyError("the function")
    if first == "none":
        return {"exact": None, "first": 0.0}
    if first == right:
        return {"exact": 1.0, "first": 1.0}
    second = await model.chat([*first.messages, {"role": "user", "content": "Again."}])
    return {"exact": float(second == right), "first": 0.0}
'''


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The package of an environment as a folder on the path, and its id in verifiers."""

    def write(text=SUMS, name="sums"):
        (tmp_path / f"{name}.py").write_text(text)
        folder = tmp_path / "package"
        words = [str(tmp_path / f"{name}.py"), "--to", "verifiers", "--out", str(folder)]
        assert export.main(words) == 0
        monkeypatch.syspath_prepend(folder)
        return folder

    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        if name.startswith("sums"):
            del sys.modules[name]
    invalidate_caches()


async def episode(url, position=0, sampling=None, **taskset):
    """One episode of a task, run by verifiers."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import resolve_env_config

    config = resolve_env_config({"taskset": {"id": "sums_verifiers", **taskset}})
    env = vf.load_environment(config)
    client = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="NO_KEY_IS_SET")
    context = vf.ModelContext("fake", client, vf.SamplingConfig(**(sampling or {})))
    task = list(env.taskset)[position]
    async with env.serving():
        return await env.run_slot(env.slots(task, 1)[0], context)


@pytest.mark.parametrize("replies", [["3"], ["4", "3"], ["4", "5"]])
async def test_an_episode_has_the_reward_that_the_environment_gives(written, replies):
    folder = written()
    ours = load(str(folder / "sums_environment.py"))
    left = iter(replies)
    with FakeInference(reply=lambda prompt, i: next(left)).running() as url:
        done = await episode(url)
    task = done.task.data.task
    reward, _ = await play(ours, task, [r for r in replies])
    (trace,) = done.traces
    assert done.ok and trace.ok and not trace.errors
    assert trace.reward == pytest.approx(reward.score)
    assert trace.metrics == pytest.approx(dict(reward.metrics))
    assert trace.num_turns == len(replies)


@pytest.mark.parametrize(
    ("reply", "message"), [("none", "no score"), ("crash", "the function")]
)
async def test_no_score_and_a_failing_function_are_errors_and_no_reward(
    written, reply, message
):
    written()
    with FakeInference(reply=lambda prompt, i: reply).running() as url:
        done = await episode(url)
    (trace,) = done.traces
    assert not done.ok and message in trace.last_error.message
    kind = "TaskError" if reply == "none" else "HarnessError"
    assert trace.last_error.type == kind
    assert trace.rewards.get("total_reward") is None


async def test_settings_sampling_and_a_system_prompt_reach_the_model(written, tmp_path):
    written()
    (tmp_path / "system.txt").write_text("Count.")
    fake = FakeInference(reply=lambda prompt, i: "3")
    with fake.running() as url:
        given = {"settings": {"max_tokens": 7}, "system_prompt": str(tmp_path / "system.txt")}
        done = await episode(url, sampling={"temperature": 0.25}, **given)
    ((_, body),) = fake.requests
    assert done.ok and (body["max_tokens"], body["temperature"]) == (7, 0.25)
    assert body["messages"][0] == {"role": "system", "content": "Count."}


async def test_an_agent_of_the_function_uses_the_same_endpoint(written):
    written()
    with FakeInference(reply=lambda prompt, i: "3").running() as url:
        done = await episode(url, settings={"kind": "agent"})
    assert done.ok and done.traces[0].reward == 1.0 and done.traces[0].num_turns == 1


async def test_tasks_are_those_of_the_environment_and_gold_replies_validate(written):
    written()
    module = __import__("sums_verifiers")
    tasks = list(module.Taskset(module_config(module)))
    held_out = list(module.Taskset(module_config(module, held_out=True)))
    ids = sorted(task.data.id for task in [*tasks, *held_out])
    assert ids == ["1", "2", "3", "4"] and held_out
    assert all([await task.validate(None) for task in tasks])


def module_config(module, **fields):
    from verifiers.v1.utils.loaders import taskset_config_type

    return taskset_config_type(module.__name__)(id=module.__name__, **fields)


async def test_a_generator_is_endless_and_every_view_reads_it_from_its_start(written):
    written(
        "from itertools import count\n"
        "from atroposlib.envs import environment\n\n"
        "def tasks():\n    return ({'id': str(n)} for n in count())\n\n"
        "@environment(tasks)\n"
        "async def sums(task, model):\n    return 1.0\n"
    )
    module = __import__("sums_verifiers")
    made = module.Taskset(module_config(module))
    assert not made.bounded
    for _ in range(2):
        assert [task.data.id for task in made.take(3)] == ["0", "1", "2"]


def test_no_name_of_the_exported_task_hides_one_of_its_base():
    import verifiers.v1 as vf

    from atroposlib.adapters.inside.verifiers_export import ExportedTask

    own = {name for name in vars(ExportedTask) if not name.startswith("__")}
    assert own & set(dir(vf.Task)) == {"validate"}  # which is a hook


@pytest.mark.slow
def test_the_package_is_installed_and_loads_from_another_folder(written, tmp_path):
    folder, site = written(), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--target", site, folder]
    subprocess.run(pip, check=True, cwd=tmp_path)
    program = (
        "import verifiers.v1 as vf; from verifiers.v1.utils.loaders import *;"
        "env = load_environment(resolve_env_config({'taskset': {'id': 'sums_verifiers'}}));"
        "print(len(list(env.taskset)), type(env).__module__)"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=site, env=paths, capture_output=True, text=True
    )
    assert done.stdout == "3 sums_verifiers\n", done.stderr
