"""Turns of agents: each message once, and a note where a prompt does not go on."""

from __future__ import annotations

from atroposlib.cli.trial.conversations import REWRITTEN, Conversations


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def test_messages_that_a_client_sends_again_are_shown_once():
    heard = Conversations()
    heard.hear("a", [message("user", "1")], message("assistant", "x"))
    again = [
        message("user", "1"),
        message("assistant", "x", refusal=None),
        message("user", "2"),
    ]
    heard.hear("a", again, message("assistant", "y"))
    heard.hear("b", [message("user", "other")], message("assistant", "z"))
    assert [one["content"] for one in heard.messages("a")] == ["1", "x", "2", "y"]
    assert [one["content"] for one in heard.messages("b")] == ["other", "z"]
    assert heard.messages("c") == []


def test_a_rewritten_prompt_is_marked():
    heard = Conversations()
    heard.hear("", [message("user", "1")], message("assistant", "x"))
    heard.hear("", [message("user", "short")], message("assistant", "y"))
    assert [one["content"] for one in heard.messages("")] == [
        "1",
        "x",
        REWRITTEN,
        "short",
        "y",
    ]
