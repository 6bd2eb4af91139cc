"""atropos chat: turns of a piped conversation, and what is left out when it grows too long."""

from __future__ import annotations

import io

import pytest

from atroposlib.errors import ConfigError
from atroposlib.inference import chat

OPTIONS = ("--max-tokens", "4", "--temperature", "0", "--device", "cpu")


def test_each_line_of_a_pipe_gets_an_answer(model_dir, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("what is 2?\n\nand 3?\n"))
    assert chat.main([str(model_dir), "--system", "be short", *OPTIONS]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no model directory"):
        chat.main([str(tmp_path)])


def test_the_oldest_turns_are_left_out_where_the_context_is_full(make_engine, capsys):
    engine, options = make_engine(), chat.parse_args(["m", *OPTIONS])
    turns = [
        {"role": "user", "content": "a" * 100},
        {"role": "assistant", "content": "b" * 100},
    ]
    said = chat.reply(engine, [*turns, *turns, {"role": "user", "content": "c"}], options)
    assert said == capsys.readouterr().out.removesuffix("\n")
    with pytest.raises(ConfigError, match="tokens, the model reads"):
        chat.reply(engine, [{"role": "user", "content": "d" * 400}], options)


def test_a_model_without_a_template_reads_lines(reference, monkeypatch):
    monkeypatch.setattr(reference.tokenizer, "chat_template", None)
    ids = chat.conversation_ids(reference.tokenizer, [{"role": "user", "content": "hi"}])
    assert reference.tokenizer.decode(ids).replace(" ", "") == "user:hi\nassistant:"
