"""Notes of returned tokens: by receiver, with the oldest version."""

from __future__ import annotations

from types import SimpleNamespace

from atroposlib.generation.engines.returned import (
    note_returned,
    oldest_version,
    token_receiver,
    use_receiver,
)
from atroposlib.generation.sampling.generation import Generation


def generation(versions):
    count = len(versions)
    return Generation(
        prompt_ids=[1],
        tokens=[5] * count,
        logprobs=[-0.5] * count,
        versions=versions,
        finish_reason="stop",
    )


def test_a_reply_goes_to_the_innermost_receiver_with_its_oldest_version():
    outer, inner = [], []
    with use_receiver(outer.append):
        with use_receiver(inner.append):
            note_returned("server", "train", [generation([3, 2]), generation([-1])])
        note_returned("server", "eval", ([1], [[5, 6]], [[0, 0]], ["stop"]), "old_weights")
    [reply], [thrown_away] = inner, outer
    assert (reply.tokens, reply.version, reply.discarded) == (3, 2, "")
    assert (thrown_away.tokens, thrown_away.split) == (2, "eval")
    assert thrown_away.discarded == "old_weights"
    assert token_receiver.get() is None


def test_a_reply_without_versions_has_the_announced_version():
    replies = []
    chat = SimpleNamespace(usage=SimpleNamespace(completion_tokens=7))
    with use_receiver(replies.append):
        note_returned(SimpleNamespace(announced_version=4), "train", chat)
        note_returned(None, "train", chat)
        note_returned(None, "train", {"prompt_tokens": [1]})
    assert [(reply.tokens, reply.version) for reply in replies] == [(7, 4), (7, -1)]
    assert oldest_version([generation([-1])]) == -1
