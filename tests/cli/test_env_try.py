"""atropos env try: what it prints of rollouts, and how it fails."""

from __future__ import annotations

import sys

import pytest

from atroposlib.cli import env_new, env_try
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET, write_char_tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    return str(write_char_tokenizer(tmp_path / "model", ASCII_ALPHABET))


@pytest.fixture
def wordle(tmp_path, monkeypatch):
    """A scaffolded environment; its module is forgotten afterwards."""
    env_new.write_project("wordle", tmp_path / "wordle")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "wordle/wordle.py"
    sys.modules.pop("wordle", None)


def test_rollouts_are_printed_with_messages_reward_parts_and_tokens(wordle, tokenizer, capsys):
    with FakeInference(reply=lambda prompt, i: "5").running() as url:
        words = [str(wordle), "-n", "2", "--url", f"{url}/v1", "--model", tokenizer]
        assert env_try.main([*words, "--env.seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("rollout ") == 2
    assert "short 1)" in out and "(exact " in out
    assert "  user       What is " in out and "  assistant  5\n" in out
    assert "2 of them sampled, mean logprob" in out and "policy version 0" in out


def test_names_that_are_not_given_are_those_of_the_server(wordle, tokenizer, capsys):
    fake = FakeInference(shapes=["completions"])
    fake.cards = [{"id": "served", "owned_by": "atropos-local", "root": tokenizer}]
    with fake.running() as url:
        assert env_try.main([str(wordle), "-n", "1", "--url", f"{url}/v1"]) == 0
        assert {body["model"] for _, body in fake.requests} == {"served"}
        sys.modules.pop("wordle")
        words = [str(wordle), "--url", f"{url}/v1", "--model", "large"]
        assert env_try.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "model 'large' is not served" in line and "to served, or leave it out" in line


def test_absent_data_is_an_error_before_the_server_is_asked(tmp_path, capsys):
    words = ["gsm8k", "--url", "http://127.0.0.1:1/v1", "--env.dataset_path"]
    assert env_try.main([*words, str(tmp_path / "absent")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "absent does not exist; --env.dataset_path takes" in line


def test_the_group_of_a_class_is_printed(tokenizer, capsys):
    with FakeInference(reply=lambda prompt, i: "ab").running() as url:
        assert (
            env_try.main(["copy", "-n", "3", "--url", f"{url}/v1", "--model", tokenizer]) == 0
        )
    assert capsys.readouterr().out.count("rollout ") == 3


def test_the_first_error_ends_it_with_exit_status_1(wordle, tokenizer, capsys):
    text = wordle.read_text(encoding="utf-8")
    wrong = text.replace("return rewards(task, text)", "return 1 / 0")
    wordle.write_text(wrong)
    line = 1 + wrong[: wrong.index("return 1 / 0")].count("\n")
    fake = FakeInference()
    with fake.running() as url:
        assert env_try.main([str(wordle), "--url", f"{url}/v1", "--model", tokenizer]) == 1
    error = capsys.readouterr().err
    assert f"wordle.py:{line}: ZeroDivisionError" in error and "`return 1 / 0`" in error
    assert len(error.splitlines()) <= 3
    assert len(fake.requests) == 1
    sys.modules.pop("wordle")
    with fake.running() as url:
        words = [str(wordle), "--url", f"{url}/v1", "--model", tokenizer, "-v"]
        assert env_try.main(words) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_absent_server_is_one_line_with_its_start_command(wordle, tokenizer, capsys):
    words = [str(wordle), "--url", "http://127.0.0.1:1/v1", "--model", tokenizer]
    assert env_try.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "error: no inference server at http://127.0.0.1:1/v1: start `atropos "
    )
    assert len(error.splitlines()) == 1


def test_settings_and_the_number_of_rollouts_are_checked(wordle, capsys):
    assert env_try.main([str(wordle), "--env.groupsize", "2"]) == 2
    assert "did you mean --env.group_size?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        env_try.main([str(wordle), "-n", "0"])
    assert ended.value.code == 2


def test_control_characters_are_shown(capsys):
    env_try.print_block("user", "a\x1b[31m\nb")
    assert capsys.readouterr().out == "  user       a\\x1b[31m\n             b\n"


TWICE = """
from atroposlib.envs import environment

def shout(text: str) -> str:
    return text.upper()

@environment(["a"], describe_tools=True, max_token_length=9)
async def twice(task, model):
    await model.chat("one", tools=[shout])
    await model.chat("other")
    return SCORE
twice.cli()
"""


@pytest.fixture
def tried(tmp_path, tokenizer, monkeypatch):
    """Try the script of two unlinked calls, whose last line runs its own command line."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(score):
        (tmp_path / "twice.py").write_text(TWICE.replace("SCORE", score))
        with FakeInference(reply=lambda prompt, i: "b").running() as url:
            words = [str(tmp_path / "twice.py"), "-n", "1", "--url", f"{url}/v1"]
            return env_try.main([*words, "--model", tokenizer])

    yield run
    sys.modules.pop("twice", None)


def test_rows_are_numbered_with_the_described_tools_and_a_warning_of_their_length(
    tried, capsys
):
    assert tried("1.0") == 0
    done = capsys.readouterr()
    assert "rollout 1 of 1, task a: reward 1\n  row        1 of 2\n  system " in done.out
    assert "You may call these functions:" in done.out and "  row        2 of 2" in done.out
    assert "more than --env.max_token_length 9: dropped by `serve`" in done.out
    assert not done.err


def test_rollouts_without_a_score_are_printed_and_end_with_exit_status_1(tried, capsys):
    assert tried("None") == 1
    done = capsys.readouterr()
    assert "task a: no score (None)" in done.out and "assistant  b" in done.out
    assert "your function returned None" in done.err


def test_a_tool_without_a_type_is_named_with_its_line_and_that_of_the_call(
    tried, capsys, monkeypatch
):
    untyped = TWICE.replace("text: str", "text")
    monkeypatch.setattr(sys.modules[__name__], "TWICE", untyped)
    assert tried("1.0") == 2
    error = capsys.readouterr().err
    assert "twice.py:9: tool shout (" in error and "twice.py:4): parameter 'text'" in error


AGENTS = """
from atroposlib.envs import environment

@environment(["a"])
async def agents(task, model):
    for name in ("one", "two"):
        async with await model.openai(name, trainable=name == "one") as client:
            messages = [{"role": "user", "content": "to " + name + chr(27) + "[31m"}]
            await client.chat.completions.create(model="m", messages=messages)
    return 0.5
"""


def test_turns_and_rewards_of_all_agents_are_printed_and_are_in_the_page(
    tmp_path, tokenizer, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "agents.py").write_text(AGENTS)
    with FakeInference(reply=lambda prompt, i: "b").running() as url:
        words = [str(tmp_path / "agents.py"), "-n", "1", "--url", f"{url}/v1"]
        words += ["--html", str(tmp_path / "page.html"), "--max-judge-calls", "0"]
        assert env_try.main([*words, "--model", tokenizer]) == 0
    sys.modules.pop("agents", None)
    out = capsys.readouterr().out
    assert "agent      one, reward 0.5, 1 turns" in out and "user       to one\\x1b[31m" in out
    assert "agent      two, not trained, 1 turns" in out and "user       to two" in out
    assert out.count("assistant  b") == 2 and "tokens " in out
    assert "1 rows in" in out and (tmp_path / "page.html").stat().st_size > 10_000


def test_a_replay_has_no_page_and_the_refusal_names_the_view_that_has(capsys):
    with pytest.raises(SystemExit):
        env_try.main(["agents.py", "--replay", "runs/a", "--html", "page.html"])
    assert "atropos view RUN" in capsys.readouterr().err


JUDGED = """
import httpx
from atroposlib.envs import environment

@environment(["a"])
async def judged(task, model):
    await model.chat("one")
    try:
        httpx.post("http://127.0.0.1:1/v1/chat/completions", json={"model": "judge"})
    except Exception:
        pass
    return 1.0
"""


def test_calls_of_judges_are_printed_and_bounded(tmp_path, tokenizer, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "judged.py").write_text(JUDGED)
    with FakeInference(reply=lambda prompt, i: "b").running() as url:
        words = [str(tmp_path / "judged.py"), "-n", "2", "--url", f"{url}/v1"]
        words += ["--model", tokenizer]
        assert env_try.main(words) == 0
        assert "calls of other models: 127.0.0.1:1 judge 2" in capsys.readouterr().out
        sys.modules.pop("judged", None)
        assert env_try.main([*words, "--max-judge-calls", "1"]) == 1
    sys.modules.pop("judged", None)
    assert "more than 1 calls of models that are not the policy" in capsys.readouterr().err


def test_only_a_file_is_watched():
    with pytest.raises(ConfigError, match="--watch looks at a file, and gsm8k is none"):
        env_try.main(["gsm8k", "--watch"])
