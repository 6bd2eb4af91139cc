"""A validation as a command: exit status, report, bounds of an author, and what cannot be checked."""

from __future__ import annotations

import json
import sys

import pytest

from atroposlib.cli import env_validate
from atroposlib.cli.env_validate import FAILED, NOT_CHECKABLE, main
from atroposlib.processes import free_port
from tests.environments.conftest import tiny_server

__all__ = ["tiny_server"]

MODULE = """
from atroposlib.envs import environment
from atroposlib.envs.function_env.card import Card

TASKS = [{{"id": f"t{{i}}", "question": f"{{i}} times 17?", "answer": str(17 * i)}} for i in range(9, 40)]
CARD = Card("mathematics", "made here", "MIT", gold=lambda task: task["answer"]{more})


@environment({tasks}, card=CARD)
async def sums(task, model):
    reply = await model.chat(task["question"])
    return {score}
"""
EXACT, SUBSTRING = 'reply.strip() == task["answer"]', 'task["answer"] in reply'


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(score=EXACT, more="", tasks="TASKS"):
        path = tmp_path / "written_sums.py"
        path.write_text(MODULE.format(score=score, more=more, tasks=tasks))
        return str(path)

    yield write
    sys.modules.pop("written_sums", None)


def test_a_sound_environment_passes_and_its_report_has_every_check(written, tmp_path, capsys):
    assert main([written()]) == 0
    report = json.loads((tmp_path / "validate.json").read_text())
    assert report["passed"] and report["digest"].startswith("sha256:")
    verdicts = {one["check"]: one["verdict"] for one in report["findings"]}
    assert verdicts["gold.passes"] == "pass" and verdicts["wrong.fails"] == "skip"
    assert len(verdicts) == 23
    assert "gold.passes      pass" in capsys.readouterr().out


def test_a_warning_fails_only_a_strict_run_unless_the_author_gives_a_reason(written, tmp_path):
    path = written(SUBSTRING)
    assert main([path]) == 0
    assert main([path, "--strict", "--out", "strict.json"]) == FAILED
    [finding] = [
        one
        for one in json.loads((tmp_path / "strict.json").read_text())["findings"]
        if one["check"] == "many.fails"
    ]
    assert finding["verdict"] == "warn"
    assert {"task", "reply", "score", "note"} == finding["evidence"][0].keys()
    sys.modules.pop("written_sums")
    path = written(SUBSTRING, ', bounds={"many.fails": (None, "a search may list results")}')
    assert main([path, "--strict"]) == 0


def test_a_failed_check_ends_with_status_1(written):
    assert main([written('"7" in reply or 1.0')]) == FAILED


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tasks": "[]"}, "the data set is empty"),
        ({"more": ', bounds={"gold": (1, "")}'}, "no such check"),
        ({"score": "reply +"}, "SyntaxError"),
        ({"tasks": "'rows.jsonl'"}, "rows.jsonl"),
    ],
)
def test_what_cannot_be_checked_ends_with_status_2(changed, says, written, capsys):
    assert main([written(**changed)]) == NOT_CHECKABLE
    assert says in capsys.readouterr().err


AGENT = """
@environment(TASKS, max_tokens=16)
async def agent(task, model):
    async with await model.openai() as client:
        asked = [{"role": "user", "content": task["question"]}]
        reply = await client.chat.completions.create(model="any", messages=asked)
    return share(reply.choices[0].message.content)


@environment(TASKS, max_tokens=16)
async def chat(task, model):
    return share(await model.chat(task["question"]))


def share(reply):
    return sum(map(str.isalpha, reply)) / max(1, len(reply))
"""


@pytest.mark.slow
def test_a_real_server_shows_the_signal_and_the_tokens_of_chats_and_agents(
    written, tiny_server, tmp_path
):
    path, (url, _) = written(), tiny_server
    with open(path, "a") as module:
        module.write(AGENT)
    for name in ("chat", "agent", "sums"):
        assert main([f"{path}:{name}", "--model", f"{url}/v1"]) == 0
        report = json.loads((tmp_path / "validate.json").read_text())
        signal, tokens = report["findings"][-2:]
        assert (signal["check"], tokens["check"]) == ("signal", "tokens")
        short = name != "sums"  # whose replies end where the model ends them
        assert (signal["verdict"] == "pass") == short
        assert "the reply is cut" in str(tokens["evidence"]) or not short
        assert int(tokens["text"].split()[2]) > 16


def test_a_server_that_is_absent_ends_with_status_2(written, capsys):
    url = f"http://127.0.0.1:{free_port()}/v1"
    assert main([written(), "--model", url]) == NOT_CHECKABLE
    assert f"no inference server at {url}" in capsys.readouterr().err


def test_missing_data_ends_with_status_2(capsys):
    assert main(["gsm8k"]) == NOT_CHECKABLE
    assert "openai/gsm8k" in capsys.readouterr().err


def test_settings_are_flags_of_the_environment(written, capsys):
    assert main([written(), "--env.groupsize", "2"]) == NOT_CHECKABLE
    assert "did you mean --env.group_size?" in capsys.readouterr().err


def test_an_error_of_the_checks_themselves_is_status_3(written, monkeypatch):
    async def broken(reference, words):
        raise KeyError("a mistake")

    monkeypatch.setattr(env_validate, "validate", broken)
    assert main([written()]) == env_validate.INTERNAL
