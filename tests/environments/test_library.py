"""Every function environment with a card: gold replies pass, and no others do."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import random
import re

import pytest

import atroposlib.environments
from atroposlib.cli.env_validate import validate
from atroposlib.environments import library
from atroposlib.envs.function_env.card import play
from atroposlib.envs.function_env.data import load, split_held_out, task_id
from tests.adapters.conftest import require
from tests.environments.cases import ADVERSARIAL
from tests.envs.test_sandbox import WHY

TASKS = 8  # per environment and row of the table
MOST_TASKS = 1000
NEED_A_SANDBOX = ("code_execution", "code_repair")
NEED_A_PACKAGE = {
    "chess_game": "chess",
    "reasoning_gym": "reasoning_gym",
    "tau2": "tau2",
    "textworld": "textworld",
    "workspace": "mcp",
}


def found():
    for package in (atroposlib.environments, library):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for one in vars(importlib.import_module(module.name)).values():
                if getattr(getattr(one, "definition", None), "card", None):
                    yield one


ENVIRONMENTS = {env_cls.name: env_cls for env_cls in found()}


@pytest.fixture(params=ENVIRONMENTS)
def env_cls(request):
    if request.param in NEED_A_SANDBOX and WHY:
        pytest.skip(WHY)
    require(NEED_A_PACKAGE.get(request.param))
    return ENVIRONMENTS[request.param]


async def tasks_of(env_cls):
    config = env_cls.env_config_cls()
    if "tasks" in type(config).model_fields:
        config.tasks = 60
    rows = await load(env_cls.definition.dataset, config, env=env_cls.name, split="train")
    return list(itertools.islice(rows, MOST_TASKS))  # some are without end


@pytest.fixture
async def tasks(env_cls):
    rows = await tasks_of(env_cls)
    random.Random(0).shuffle(rows)
    return rows


def text_of(message):
    content = message["content"]
    parts = [content] if isinstance(content, str) else content
    return "".join(part if isinstance(part, str) else part.get("text", "") for part in parts)


async def score(env_cls, task, replies):
    return (await play(env_cls, task, replies))[0].score


async def test_gold_replies_get_the_best_score(env_cls, tasks):
    card = env_cls.definition.card
    for task in tasks[:TASKS]:
        assert await score(env_cls, task, card.gold(task)) == card.best, task


@pytest.mark.parametrize("reply", ADVERSARIAL)
async def test_adversarial_replies_get_no_more_than_the_floor(env_cls, tasks, reply):
    for task in tasks[:2]:
        replies = [ADVERSARIAL[reply]] * 8
        assert await score(env_cls, task, replies) <= env_cls.definition.card.floor


async def test_the_prompt_as_the_reply_gets_no_more_than_the_floor(env_cls, tasks):
    for task in tasks[:TASKS]:
        _, model = await play(env_cls, task, [])
        prompt = "\n".join(text_of(message) for message in model.replies[0].messages)
        score_of_it = await score(env_cls, task, [prompt] * 4)
        assert score_of_it <= env_cls.definition.card.floor, prompt


async def test_gold_replies_of_other_tasks_seldom_pass(env_cls, tasks):
    card = env_cls.definition.card
    pairs = list(zip(tasks, tasks[1:]))[: 2 * TASKS]
    pairs = [(a, b) for a, b in pairs if card.gold(a) != card.gold(b)]
    scores = [await score(env_cls, a, card.gold(b)) for a, b in pairs]
    most = card.floor + 0.2 * (card.best - card.floor)
    assert len(pairs) >= TASKS and sum(scores) / len(scores) <= most


async def test_one_reply_to_all_tasks_seldom_passes(env_cls, tasks):
    card = env_cls.definition.card
    golds = [card.gold(task) for task in tasks[:TASKS]]
    same = max(golds, key=golds.count)
    scores = [await score(env_cls, task, same) for task in tasks[TASKS : 2 * TASKS]]
    assert sum(scores) / len(scores) <= card.floor + 0.6 * (card.best - card.floor)


async def test_tasks_are_the_same_in_every_run_and_none_is_held_out_and_trained(env_cls):
    first, second = [await tasks_of(env_cls) for _ in range(2)]
    assert first == second
    assert len({task_id(task) for task in first}) == len(first)
    if env_cls.definition.eval_dataset is None:
        trained, held_out = split_held_out(first, 0.1)
        assert held_out
        questions = [[asked(first[i]) for i in side] for side in (trained, held_out)]
        assert not set(questions[0]) & set(questions[1])
    else:
        assert env_cls.definition.eval_dataset is not env_cls.definition.dataset


def asked(task):
    return re.sub(r"\W+", " ", task.get("question", "")).lower() or task["id"]


@pytest.mark.slow
async def test_every_environment_passes_validate(env_cls):
    if env_cls.name in NEED_A_PACKAGE:
        pytest.skip("its package is missing in the main environment")
    name = env_cls.__module__.rpartition(".")[2].removesuffix("_server")
    known = env_cls.env_config_cls.model_fields
    words = ["--env.sandbox", "none"] if "sandbox" in known else []
    report = await validate(f"atroposlib:{name}", words)
    assert report.passed(), report.table()


def test_a_card_has_all_facts():
    for name, env_cls in ENVIRONMENTS.items():
        card = env_cls.definition.card
        assert card.kind and card.data and card.licence and card.turns, name


EASIER = [
    ("letters", {"words": 1, "backwards": 0, "apart": True}),
    ("letters", {"words": 1, "bare": True}),
    ("letters", {"steps": True}),
    ("tic_tac_toe", {"bare": True}),
    ("calculator", {"stories": False}),
    ("sql_queries", {"tables": 1, "tasks": 60}),
    ("sql_queries", {"tables": 2, "tasks": 60}),
]


@pytest.mark.parametrize(("name", "level"), EASIER)
async def test_gold_replies_pass_at_an_easier_level_too(name, level):
    env_cls = ENVIRONMENTS[name]
    config = env_cls.env_config_cls(**level)
    rows = await load(env_cls.definition.dataset, config, env=name, split="train")
    for task in list(rows)[:TASKS]:
        assert await score(env_cls, task, env_cls.definition.card.gold(task)) == 1.0, task


async def test_no_count_of_letters_is_the_answer_to_most_tasks():
    config = ENVIRONMENTS["letters"].env_config_cls(words=2, backwards=0)
    rows = await load(
        ENVIRONMENTS["letters"].definition.dataset, config, env="", split="train"
    )
    answers = [task["answer"] for task in rows]
    assert max(map(answers.count, set(answers))) < 0.45 * len(answers)
