"""Masks from a chat template, and a clear error where the template allows none."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, strategies as st

from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.tokenize_for_trainer import (
    UNMASKED_ROLES,
    TemplateNotPrefixStable,
    tokenize_for_trainer,
)
from atroposlib.utils.tokenizers.forms import with_ids

CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "2?"},
    {"role": "assistant", "content": "4"},
]


# Differences of families: text kept or added in the last turn, and text after a turn.
TURN = "<|{{ m['role'] }}|>"
CHATML = (
    "{% for m in messages %}" + TURN + "{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DROPS_REASONING = (
    "{% for m in messages %}" + TURN + "{% set parts = m['content'].split('</think>') %}"
    "{% if loop.last and m['role'] == 'assistant' and parts | length == 1 %}"
    "<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] if loop.last else parts[-1].lstrip('\n') }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OPENS_REASONING = CHATML.replace("<|assistant|>{% endif", "<|assistant|><think>\n{% endif")
SYSTEM_FIRST = "{{ messages[0]['role'] and '' }}<|system|>be brief<|end|>" + CHATML


def family(template):
    tokenizer = char_tokenizer(alphabet=string.printable)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return with_ids(char_tokenizer())


def trained(tokenizer, result):
    return tokenizer.decode([label for label in result["masks"] if label != -100])


def test_the_last_message_is_trained_with_its_end_token(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT)
    assert isinstance(result["tokens"], list) and isinstance(result["tokens"][0], int)
    assert len(result["tokens"]) == len(result["masks"])
    assert tokenizer.decode(result["tokens"]) == (
        "<|user|>hi<|end|><|assistant|>yo<|end|><|user|>2?<|end|><|assistant|>4<|end|>"
    )
    assert trained(tokenizer, result) == "4<|end|>"
    assert "messages" not in result


def test_all_assistant_turns_can_be_trained(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT, True, train_on_all_assistant_turns=True)
    assert trained(tokenizer, result) == "yo<|end|>4<|end|>"
    assert result["messages"] == CHAT
    assert UNMASKED_ROLES == ["assistant", "agent"]


def test_an_end_token_that_was_not_sampled_is_removed(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT, finish_reason="length")
    assert trained(tokenizer, result) == "4"
    assert len(result["tokens"]) == len(result["masks"])


def test_an_end_token_is_cut_even_when_white_space_follows_it(tokenizer):
    class Newlines:
        eos_token_id = tokenizer.eos_token_id
        decode = staticmethod(tokenizer.decode)

        def apply_chat_template(self, messages, **kwargs):
            ids = tokenizer.apply_chat_template(messages, **kwargs)
            ends = kwargs.get("add_generation_prompt")
            return ids if ends else [*ids, *tokenizer.encode("\n")]

    result = tokenize_for_trainer(Newlines(), CHAT[:2], finish_reason="length")
    assert trained(tokenizer, result) == "yo"


def test_a_template_that_rewrites_earlier_turns_is_rejected(tokenizer):
    class DropsThinking:
        eos_token_id = tokenizer.eos_token_id

        def apply_chat_template(self, messages, **kwargs):
            last = len(messages) - 1
            return tokenizer.apply_chat_template(
                [
                    {**m, "content": m["content"].upper() if i == last else m["content"]}
                    for i, m in enumerate(messages)
                ],
                **kwargs,
            )

    with pytest.raises(TemplateNotPrefixStable, match="first 1 messages"):
        tokenize_for_trainer(DropsThinking(), CHAT[:2])


REASONED = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "<think>\na\n</think>\n\nyo"},
    {"role": "user", "content": "2?"},
    {"role": "assistant", "content": "<think>\nb\n</think>\n\n4"},
]


@pytest.mark.parametrize(
    ("template", "last", "all_turns"),
    [
        (CHATML, "4<|end|>\n", "yo<|end|>\n4<|end|>\n"),
        (SYSTEM_FIRST, "4<|end|>\n", "yo<|end|>\n4<|end|>\n"),
        (OPENS_REASONING, "4<|end|>\n", "yo<|end|>\n4<|end|>\n"),
        (
            DROPS_REASONING,
            "<think>\n\n</think>\n\n4<|end|>\n",
            "yo<|end|>\n<think>\n\n</think>\n\n4<|end|>\n",
        ),
    ],
    ids=["chatml", "system-first", "opens-reasoning", "drops-reasoning"],
)
def test_every_template_family_renders_the_turns_unchanged(template, last, all_turns):
    tokenizer = family(template)
    assert trained(tokenizer, tokenize_for_trainer(tokenizer, CHAT)) == last
    result = tokenize_for_trainer(tokenizer, CHAT, train_on_all_assistant_turns=True)
    assert trained(tokenizer, result) == all_turns


def test_a_turn_that_lost_its_reasoning_is_not_trained(caplog):
    tokenizer = family(DROPS_REASONING)
    result = tokenize_for_trainer(tokenizer, REASONED, train_on_all_assistant_turns=True)
    assert "<think>\na" not in tokenizer.decode(result["tokens"])
    last = "<think>\nb\n</think>\n\n4<|end|>\n"
    assert trained(tokenizer, result) == last
    assert "turn 1 is not trained" in caplog.text


DROPS_ALL = (  # as DeepSeek-R1: no turn keeps its reasoning, and the prompt opens one
    "{% for m in messages %}" + TURN + "{{ m['content'].split('</think>')[-1] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
ENDS_TWICE = CHATML.replace(
    "{% if", "{% if not add_generation_prompt %}<|pad|>{% endif %}{% if"
)


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ("<think>\nb\n</think>\n\n4", "b\n</think>\n\n4<|end|>"),
        ("<think>b</think>4", "b</think>4<|end|>"),
        ("b\n</think>\n\n4", "b\n</think>\n\n4<|end|>"),
        ("4", "4<|end|>"),
    ],
)
def test_a_turn_whose_reasoning_the_template_drops_is_rendered_as_sampled(content, row):
    tokenizer = family(DROPS_ALL)
    chat = [CHAT[0], {"role": "assistant", "content": content}]
    result = tokenize_for_trainer(tokenizer, chat)
    assert trained(tokenizer, result) == row
    opened = "</think>" in content
    prompt = "<|user|>hi<|end|><|assistant|>" + ("<think>\n" if opened else "")
    assert tokenizer.decode(result["tokens"]) == prompt + row


@pytest.mark.parametrize("template", [CHATML, ENDS_TWICE, DROPS_ALL])
def test_a_cut_off_turn_has_none_of_the_end_tokens(template):
    result = tokenize_for_trainer(family(template), CHAT, finish_reason="length")
    assert trained(family(template), result) == "4"


def test_text_opened_by_the_generation_prompt_is_not_trained():
    tokenizer = family(OPENS_REASONING)
    result = tokenize_for_trainer(tokenizer, REASONED)
    assert trained(tokenizer, result) == "b\n</think>\n\n4<|end|>\n"


def test_a_chat_of_one_message_has_no_prompt_to_render(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT[1:2])
    assert trained(tokenizer, result) == "<|assistant|>yo<|end|>"


def test_a_template_result_of_one_number_is_not_a_mapping_of_two_entries():
    class Mapping5:
        """The shape that transformers 5 answers with."""

        eos_token_id = 9

        def apply_chat_template(self, messages, tokenize=True, add_generation_prompt=False):
            ids = [len(messages) and 1] * (2 * len(messages)) + [1] * add_generation_prompt
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    result = tokenize_for_trainer(Mapping5(), CHAT[:2])
    assert result == {"tokens": [1, 1, 1, 1], "masks": [-100, -100, -100, 1]}


roles = st.sampled_from(["user", "assistant", "agent", "tool"])
chats = st.lists(
    st.fixed_dictionaries({"role": roles, "content": st.text("ab <>\n", max_size=6)}),
    min_size=1,
    max_size=6,
)


@given(chats, st.booleans(), st.sampled_from(["", "stop", "length"]))
def test_every_mask_entry_is_the_token_or_minus_100_and_turns_are_whole(
    chat, all_turns, reason
):
    tokenizer = HYPOTHESIS_TOKENIZER
    result = tokenize_for_trainer(
        tokenizer, chat, train_on_all_assistant_turns=all_turns, finish_reason=reason
    )
    tokens, masks = result["tokens"], result["masks"]
    assert len(tokens) == len(masks)
    assert all(mask in (-100, token) for token, mask in zip(tokens, masks))
    if all_turns and reason != "length":
        spoken = [m["content"] + "<|end|>\n" for m in chat[1:] if m["role"] == "assistant"]
        assert all(turn in trained(tokenizer, result) for turn in spoken)
    if not all_turns and not reason and len(chat) > 1 and chat[-1]["role"] == "assistant":
        assert trained(tokenizer, result) == chat[-1]["content"] + "<|end|>\n"


HYPOTHESIS_TOKENIZER = family(CHATML)
