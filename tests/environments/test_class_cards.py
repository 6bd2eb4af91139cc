"""Every class with a card passes `atropos env validate`, on its own tasks or on rows made here."""

from __future__ import annotations

import json
import sys

import pytest

from atroposlib.cli.env_validate import validate
from atroposlib.envs.function_env.env import FunctionEnv
from tests.environments.cases import CALL, ENVIRONMENTS, WEATHER, env_cls_of, fields

pytestmark = pytest.mark.slow
WORDS = "apple river stone cloud tiger piano maple ocean candle bridge silver garden".split()


def talk(city):
    system = f"Tools are there: {json.dumps([WEATHER])}"
    call = CALL.replace("Rome", city)
    turns = {"system": system, "human": f"Weather in {city}?", "gpt": call}
    return {"conversations": [{"from": role, "value": text} for role, text in turns.items()]}


def choice(i):
    choices = [WORDS[(i + j) % len(WORDS)] for j in range(4)]
    return {"question": f"Word {i}?", "choices": choices, "answer": (i * 7 + i // 4) % 4}


SUMS = [(f"What is {i} times {i + 3}?", str(i * (i + 3))) for i in range(100, 140)]
ROWS = {
    "arithmetic": None,
    "copy": None,
    "gsm8k": [{"question": asked, "answer": f"So.\n#### {n}"} for asked, n in SUMS],
    "math_server_zero": [{"question": asked, "final_answer": n} for asked, n in SUMS],
    "mcqa_thinking": [choice(i) for i in range(60)],
    "tool_calling": [talk(city) for city in WORDS],
}


def has_own_card(name):
    env_cls = env_cls_of(name)
    return not issubclass(env_cls, FunctionEnv) and "card" in vars(env_cls)


def test_every_class_with_a_card_has_rows():
    assert {name for name in ENVIRONMENTS if has_own_card(name)} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
async def test_a_class_with_a_card_passes_its_checks(name, write_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["--env.eval_sets", "[]"] if "eval_sets" in fields(name) else []
    if (rows := ROWS[name]) is not None:
        write_rows("data/train.jsonl", rows)
        write_rows("data/test.jsonl", rows)
        words += ["--env.dataset_path", str(tmp_path / "data")]
    report = await validate(name, words)
    assert report.flagged() == [], report.table()
