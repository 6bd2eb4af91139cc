"""Sampled tokens are trained unchanged under every family of chat templates."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from atroposlib.generation.chat.template import render
from atroposlib.generation.sessions.managed import ManagedServer, SequenceNode
from tests.examples import examples
from tests.generation.template_families import (
    FAMILIES,
    FAMILY_NAMED,
    Family,
    Sampler,
    one_by_one,
    tokenizer_of,
)

family_names = st.sampled_from([family.name for family in FAMILIES])
KINDS = ["words", "bytes", "metaspace", "prefixed"]
kinds = st.sampled_from(KINDS)
words = st.text("abé the?.\n", min_size=1, max_size=12)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def say(
    managed: ManagedServer, sampler: Sampler, messages: list[Any], *outputs: Any
) -> Any:
    sampler.next_outputs = [
        output if isinstance(output, tuple) else (output, "stop") for output in outputs
    ]
    return await managed.chat_completion(messages=messages, n=len(outputs))


def as_chosen(tokenizer: Any, prompt: str, text: str) -> list[int]:
    """Ids of ``text`` after ``prompt``, on its own where the two run into one another."""
    before = tokenizer.encode(prompt, add_special_tokens=False)
    both = tokenizer.encode(prompt + text, add_special_tokens=False)
    if both[: len(before)] == before:
        return both[len(before) :]
    return list(tokenizer.encode(text, add_special_tokens=False))


def trained(node: SequenceNode) -> list[tuple[int, float]]:
    return [
        (token, logprob)
        for token, logprob in zip(node.masked_tokens, node.logprobs)
        if token != -100
    ]


def check_rows(rows: list[SequenceNode], sampler: Sampler) -> list[list[int]]:
    """Every row is whole samples and masked text; the index of the samples in each row."""
    paths = []
    for row in rows:
        lengths = {len(row.tokens), len(row.masked_tokens), len(row.logprobs)}
        assert lengths == {len(row.versions)}
        for token, label, logprob, version in zip(
            row.tokens, row.masked_tokens, row.logprobs, row.versions
        ):
            assert label in (-100, token)
            assert (label == -100) == (logprob == 1.0) == (version == -1)
        left, path = trained(row), []
        while left:
            index = next(
                i for i, s in enumerate(sampler.samples) if left[0][1] in s.logprobs[:1]
            )
            sample = sampler.samples[index]
            assert left[: len(sample.tokens)] == list(zip(sample.tokens, sample.logprobs))
            left = left[len(sample.tokens) :]
            path.append(index)
        assert len(set(path)) == len(path)
        paths.append(path)
    return paths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_three_turns_are_the_template_rendered_once(family: Family, kind: str) -> None:
    tokenizer = tokenizer_of(family, kind)
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer)
    messages: list[Any] = []
    for turn in ("two and two?", "and the sea?", "the end"):
        messages.append(user(turn))
        words = f"{family.lead}the answer to {turn}{family.end}"
        sampled = as_chosen(tokenizer, render(tokenizer, messages), words)
        completion = await say(managed, sampler, messages, sampled)
        messages.append(assistant(completion.choices[0].message.content))
    rows = managed.get_state()["nodes"]
    paths = check_rows(rows, sampler)
    if not family.keeps_history:
        assert paths == [[0], [1], [2]]  # each sample in a separate row, none lost
        return
    assert paths == [[0, 1, 2]]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered.startswith(rows[0].full_text)
    whole = tokenizer.encode(rendered, add_special_tokens=False)
    assert rows[0].tokens == whole[: len(rows[0].tokens)]
    rest = tokenizer.decode(whole[len(rows[0].tokens) :])
    assert rest in ("", "\n", "\n<|endoftext|>")  # the beginning of the next turn


@pytest.mark.parametrize("ending", ["length", "stop string"])
@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.keeps_history], ids=lambda family: family.name
)
async def test_a_truncated_turn_is_closed_by_untrained_tokens_of_the_template(
    family: Family, ending: str
) -> None:
    tokenizer = tokenizer_of(family)
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer)
    text = f"{family.lead}the answer is" + ("?" if ending == "stop string" else "")
    cut = tokenizer.encode(text, add_special_tokens=False)
    first = await say(
        managed, sampler, [user("a")], (cut, "length" if ending == "length" else "stop")
    )
    messages = [user("a"), assistant(first.choices[0].message.content), user("b")]
    last = tokenizer.encode(f"{family.lead}four{family.end}", add_special_tokens=False)
    await say(managed, sampler, messages, last)
    (row,) = managed.get_state()["nodes"]
    assert check_rows([row], sampler) == [[0, 1]]
    prompt = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert row.tokens == [*tokenizer.encode(prompt, add_special_tokens=False), *last]
    assert [token for token in row.masked_tokens if token != -100] == cut + last


@pytest.mark.parametrize(
    "name", ["earlier thinking is dropped", "the prompt opens the thinking"]
)
async def test_preserved_thinking_keeps_a_conversation_in_one_row(name: str) -> None:
    family = FAMILY_NAMED[name]
    tokenizer = tokenizer_of(family)
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer, preserve_think_blocks=True)
    messages = [user("a")]
    for _ in range(3):
        sampled = tokenizer.encode(f"{family.lead}four{family.end}", add_special_tokens=False)
        completion = await say(managed, sampler, messages, sampled)
        messages += [assistant(completion.choices[0].message.content), user("b")]
    assert check_rows(managed.get_state()["nodes"], sampler) == [[0, 1, 2]]
    assert tokenizer.decode(sampler.sent[-1][1]) == sampler.sent[-1][0]


async def test_whitespace_that_the_template_strips_starts_another_row() -> None:
    """The prompt is the text of the template; the sample stays as sampled."""
    family = FAMILY_NAMED["headers"]
    tokenizer = tokenizer_of(family)
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer)
    sampled = tokenizer.encode(" four \n<|eot|>", add_special_tokens=False)
    first = await say(managed, sampler, [user("a")], sampled)
    assert first.choices[0].message.content == " four \n"
    messages = [user("a"), assistant(" four \n"), user("b")]
    await say(managed, sampler, messages, sampled)
    assert check_rows(managed.get_state()["nodes"], sampler) == [[0], [1]]
    assert tokenizer.decode(sampler.sent[-1][1]) == render(tokenizer, messages)


async def test_merged_adjacent_messages_extend_the_preceding_row() -> None:
    family = FAMILY_NAMED["neighbours of one role are merged"]
    tokenizer = tokenizer_of(family)
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer)
    sampled = tokenizer.encode("four<|im_end|>", add_special_tokens=False)
    await say(managed, sampler, [user("a"), user("b")], sampled)
    messages = [user("a"), user("b"), assistant("four"), user("c"), user("d")]
    await say(managed, sampler, messages, sampled)
    (row,) = managed.get_state()["nodes"]
    assert check_rows([row], sampler) == [[0, 1]]
    rendered = tokenizer.apply_chat_template([*messages, assistant("four")], tokenize=False)
    assert row.tokens == tokenizer.encode(rendered, add_special_tokens=False)


async def test_a_partially_sampled_character_keeps_its_sampled_tokens() -> None:
    family = FAMILY_NAMED["chatml"]
    tokenizer = tokenizer_of(family, "bytes")
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer)
    half = tokenizer.encode("caf\u00e9", add_special_tokens=False)[:-1]
    first = await say(managed, sampler, [user("a")], (half, "length"))
    content = first.choices[0].message.content
    assert content == "caf\ufffd"
    await say(managed, sampler, [user("a"), assistant(content), user("b")], half)
    (row,) = managed.get_state()["nodes"]
    assert check_rows([row], sampler) == [[0, 1]]


Turn = tuple[str, list[str], bool, str, int]  # user, replies, canonical, ending, branch

turns = st.lists(
    st.tuples(
        words,
        st.lists(st.one_of(words, st.just("")), min_size=1, max_size=3),
        st.booleans(),
        st.sampled_from(["end", "length", "empty"]),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=5,
)


async def play(
    family: Family, kind: str, track_tree: bool, preserve: bool, script: list[Turn]
) -> tuple[ManagedServer, Sampler, list[SequenceNode]]:
    """Play turns, each continuing one of all the conversations there are so far."""
    tokenizer = tokenizer_of(family, kind)
    sampler = Sampler()
    managed = ManagedServer(sampler, tokenizer, track_tree, preserve_think_blocks=preserve)
    conversations: list[list[Any]] = [[]]
    returned: list[SequenceNode] = []
    for asked, replies, canonical, ending, branch in script:
        messages = [*conversations[branch % len(conversations)], user(asked)]
        outputs = []
        for reply in replies:
            text = family.lead + reply
            tokens = (
                tokenizer.encode(text, add_special_tokens=False)
                if canonical
                else one_by_one(tokenizer, text)
            )
            ends = tokenizer.convert_tokens_to_ids(family.end)
            outputs.append(
                {
                    "end": ([*tokens, ends], "stop"),
                    "length": (tokens, "length"),
                    "empty": ([], "length"),
                }[ending]
            )
        completion = await say(managed, sampler, messages, *outputs)
        nodes = managed.nodes_for(completion)
        for choice, node, (tokens, reason) in zip(completion.choices, nodes, outputs):
            assert node.tokens[len(node.tokens) - len(tokens) :] == tokens
            assert choice.finish_reason == node.metadata["finish_reason"] == reason
            conversations.append([*messages, assistant(choice.message.content)])
        returned += nodes
    return managed, sampler, returned


@examples(120)
@given(family_names, kinds, st.booleans(), turns)
def test_every_sample_is_in_a_row_verbatim_and_branches_share_only_their_common_prefix(
    name: str, kind: str, preserve: bool, script: list[Turn]
) -> None:
    family = FAMILY_NAMED[name]
    managed, sampler, returned = asyncio.run(play(family, kind, False, preserve, script))
    rows = managed.get_state()["nodes"]
    paths = check_rows(rows, sampler)
    check_rows(returned, sampler)
    assert {i for path in paths for i in path} == {
        i for i, sample in enumerate(sampler.samples) if sample.tokens
    }
    last = [path[-1] for path, row in zip(paths, rows) if row.ends_sampled]
    assert len(set(last)) == len(last)  # no sample ends two rows
    end = tokenizer_of(family, kind).convert_tokens_to_ids(family.end)
    for row in rows:
        doubled = [a == b == end for a, b in zip(row.tokens, row.tokens[1:])]
        assert not any(doubled)
    tokenizer = tokenizer_of(family, kind)
    for text, ids in sampler.sent:  # the model reads exactly the rendered template
        assert tokenizer.decode(ids) == text


@examples(60)
@given(family_names, kinds, turns)
def test_a_tree_trains_every_sample_exactly_once(
    name: str, kind: str, script: list[Turn]
) -> None:
    managed, sampler, returned = asyncio.run(
        play(FAMILY_NAMED[name], kind, True, False, script)
    )
    rows = list(managed.get_state()["sequences"].values())
    assert rows == returned
    paths = [path for path in check_rows(rows, sampler) if path]
    assert paths == [[i] for i, sample in enumerate(sampler.samples) if sample.tokens]
