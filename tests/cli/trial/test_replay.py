"""Stored rollouts scored again: agents, tools, changed rewards, and what cannot be replayed."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.archive.load import EVERYTHING, put_files
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.cli import env_try
from atroposlib.cli.trial.replay import labels_of, reply_text, stored_rollouts
from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer

TOKENIZER = char_tokenizer(ASCII_ALPHABET)
DUEL = """
from atroposlib.envs import environment

def double(x: int) -> int:
    return 2 * x

@environment([{"id": "t/1", "n": 4}], group_size=2)
async def duel(task, model):
    reply = await model.use_tools(str(task["n"]), tools=[double])
    async with await model.openai("foe", trainable=True) as foe:
        other = await foe.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "?"}]
        )
    (await model.endpoint("foe")).reward(float(len(other.choices[0].message.content)))
    return {"exact": SCORE}

if __name__ == "__main__":
    duel.cli()
"""
CALL = {"function": {"name": "double", "arguments": '{"x": 4}'}}


def line(group_id, rows, scores, **fields):
    """A group of rows: replies between prompts of a letter each, and messages."""
    tokens, masks, messages_G = [], [], []
    for replies in rows:
        row, mask, messages = [], [], []
        for reply in replies:
            text = reply if isinstance(reply, str) else reply_text(reply)
            ids = TOKENIZER.encode(text, add_special_tokens=False)
            row += [9, *ids]
            mask += [-100, *ids]
            message = (
                {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
            )
            messages += [{"role": "user", "content": "q"}, message]
        tokens.append(row)
        masks.append(mask)
        messages_G.append(messages)
    group = {"tokens": tokens, "masks": masks, "scores": scores, "messages": messages_G}
    return json.dumps({**group, "group_id": group_id, **fields}) + "\n"


def indexed(folder, lines):
    """A run of groups."""
    (folder / "groups.jsonl").write_text(lines)
    with closing(SqliteStore(folder / "run", EVERYTHING, archive_bytes=EVERYTHING)) as store:
        put_files(store, [folder / "groups.jsonl"])
        indexer = Indexer(Index(store.archive), store)
        indexer.complete()
        indexer.close()
    return folder / "run"


@pytest.fixture
def run(tmp_path):
    """A run of two rollouts of a task, each with a tool call and an answer of the agent foe."""
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    lines = line("t/1@0", [[calling, "8"], [calling, "9"]], [1.0, 0.0])
    lines += line("t/1@0/foe", [["abc"], ["a"]], [3.0, 1.0])
    return indexed(tmp_path, lines)


@pytest.fixture
def duel(tmp_path, monkeypatch):
    """Replay with a reward."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def replay(target, score="float(reply == '8')"):
        text = DUEL.replace("SCORE", score)
        (tmp_path / "duel.py").write_text(text)
        sys.modules.pop("duel", None)
        words = ["--replay", target, "--max-judge-calls", "0"]  # agents are no judges
        return env_try.main([str(tmp_path / "duel.py"), *words])

    yield replay
    sys.modules.pop("duel", None)


def test_replies_of_all_agents_of_a_rollout_are_found(run):
    for target in (f"{run}:1", f"{run}:2", f"{run}:t/1", str(run)):
        first, second = stored_rollouts(target, 3)
        assert first.replies["foe"] == ["abc"] and second.replies["foe"] == ["a"]
        assert first.replies[""][1] == "8" and "<tool_call>" in first.replies[""][0]
        assert first.rewards == {"": 1.0, "foe": 3.0}
    for target in (f"{run}:77", f"{run}:nobody"):
        with pytest.raises(ConfigError, match="is in this run"):
            stored_rollouts(target, 3)


def test_an_unchanged_environment_gives_the_stored_rewards(run, duel, capsys):
    assert duel(f"{run}:t/1") == 0
    out = capsys.readouterr().out
    assert "calls of other models" not in out
    assert "t/1@0 sample 0: 1 -> 1\n" in out and "t/1@0 sample 0 foe: 3 -> 3\n" in out
    assert "0 of 4 rewards changed" in out


def test_a_changed_reward_is_shown_per_sample(run, duel, capsys):
    assert duel(f"{run}:1", score="0.5") == 0
    out = capsys.readouterr().out
    assert "t/1@0 sample 1: 0 -> 0.5" in out and "2 of 4 rewards changed" in out


def test_a_failing_reward_is_an_error_with_its_line(run, duel, capsys):
    assert duel(f"{run}:1", score="1 / 0") == 1
    done = capsys.readouterr()
    assert "sample 0: fails:" in done.out and "ZeroDivisionError" in done.err


def test_replies_that_do_not_fit_the_calls_are_named(run, duel, capsys):
    assert duel(f"{run}:1", score="float(len(await model.chat('more')))") == 0
    out = capsys.readouterr().out
    assert "1 more replies were asked for than are stored" in out
    assert "2 of 2 rollouts no longer make the calls that they made then" in out


def test_replies_that_are_left_say_why_and_what_to_do(tmp_path, duel, capsys):
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    lines = line("t/1@0", [[calling, "8", "9"], [calling, "8"]], [1.0, 0.0])
    lines += line("t/1@0/foe", [["abc"], ["a"]], [3.0, 1.0])
    assert duel(f"{indexed(tmp_path, lines)}:1") == 0
    out = capsys.readouterr().out
    assert "sample 0: 1 -> 1  (1 of 4 stored replies were not asked for)" in out
    assert "1 of 2 rollouts no longer make the calls" in out and "undo that change" in out


def test_an_environment_over_the_same_tasks_adds_no_replies(tmp_path, duel, capsys):
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    lines = ""
    for name, rewards in (("other_0", [7.0, 7.0]), ("duel_0", [1.0, 0.0])):
        about = {"metadata": {"env": name}}
        lines += line("t/1@0", [[calling, "8"], [calling, "9"]], rewards, **about)
        lines += line("t/1@0/foe", [["abc"], ["a"]], [3.0, 1.0], **about)
    assert duel(str(indexed(tmp_path, lines))) == 0
    out = capsys.readouterr().out
    assert "sample 0: 1 -> 1\n" in out and "sample 0 foe: 3 -> 3\n" in out
    assert "0 of 4 rewards changed" in out and "no longer" not in out


def test_untrained_agents_answer_as_they_did(tmp_path, duel, capsys):
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    told = [{"foe": [{"role": "assistant", "content": words}]} for words in ("abc", "a")]
    lines = line("t/1@0", [[calling, "8"]] * 2, [1.0, 0.0], metadata={"untrained": told})
    run = indexed(tmp_path, lines)
    assert duel(f"{run}:1", score="float(len(other.choices[0].message.content))") == 0
    out = capsys.readouterr().out
    assert "sample 0: 1 -> 3" in out and "sample 1: 0 -> 1" in out
    assert "2 of 2 rewards changed" in out


def test_an_agent_without_stored_replies_is_named_with_the_other_command(
    tmp_path, duel, capsys
):
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    run = indexed(tmp_path, line("t/1@0", [[calling, "8"]] * 2, [1.0, 0.0]))
    assert duel(f"{run}:1") == 2
    done = capsys.readouterr()
    assert "agent 'foe'" in done.out and "atropos data rescore" in done.err


def test_only_rollouts_of_the_environment_are_replayed():
    labels = ["sums_0", "sums_1", "sums_long_0", "sum_0"]
    assert labels_of("sums", labels) == ["sums_0", "sums_1"]
    assert labels_of("anything", ["sums_0"]) == ["sums_0"]
    with pytest.raises(ConfigError, match="none of other: name a group"):
        labels_of("other", labels)
