"""The tokenizer without transformers equals theirs: tokens, texts and prompts."""

from __future__ import annotations

import json
import random

import pytest
from transformers import PreTrainedTokenizerFast

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer, write_char_tokenizer
from atroposlib.utils.tokenizers import loading
from atroposlib.utils.tokenizers.plain import PlainTokenizer, obstacle

TOOL = {"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {}}}
CHATS = [
    [{"role": "user", "content": "hi <b> é"}],
    [
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": "y", "reasoning": "z", "tool_calls": [{"id": "1"}]},
    ],
]
TEMPLATE = """
{%- if tools %}{{ tools | tojson }} {{ tools[0] | tojson(indent=2) }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {{- '<|' + m.role + '|>' + (m.reasoning_content or '') + (m.thinking or '') }}
    {%- generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{{ extra }}{% endif %}
"""


@pytest.fixture
def directory(tmp_path):
    """The character tokenizer as transformers save it, with a byte-level neighbour's template."""
    tokenizer = char_tokenizer(ASCII_ALPHABET)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def both(directory):
    return PlainTokenizer(directory), PreTrainedTokenizerFast.from_pretrained(str(directory))


def test_texts_become_the_same_tokens_and_back(both):
    ours, theirs = both
    rng = random.Random(0)
    pieces = [*"ab 1\n\té漢", "<|end|>", "<|user|>", "<|pad|>"]
    for _ in range(200):
        text = "".join(rng.choices(pieces, k=rng.randrange(12)))
        ids = [rng.randrange(len(theirs)) for _ in range(6)]
        for flag in (True, False):
            assert ours.encode(text, add_special_tokens=flag) == theirs.encode(
                text, add_special_tokens=flag
            )
            assert ours.decode(ids, flag) == theirs.decode(ids, skip_special_tokens=flag)
    assert ours.batch_decode([[5, 6], [7]]) == theirs.batch_decode([[5, 6], [7]])
    assert (len(ours), ours.get_vocab()) == (len(theirs), theirs.get_vocab())


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("chat", CHATS)
def test_chats_are_rendered_alike(both, chat, tools, prompted):
    ours, theirs = (
        one.apply_chat_template(
            chat, tools=tools, add_generation_prompt=prompted, tokenize=False, extra="e"
        )
        for one in both
    )
    assert ours == theirs


def test_special_tokens_have_the_same_names_and_numbers(both):
    ours, theirs = both
    for name in ("eos_token", "eos_token_id", "pad_token_id", "bos_token_id"):
        assert getattr(ours, name) == getattr(theirs, name)
    with pytest.raises(AttributeError, match=r"atropos-rl\[transformers\]"):
        ours.num_special_tokens_to_add


def test_a_directory_written_without_transformers_is_the_same_tokenizer(tmp_path):
    written = PlainTokenizer(write_char_tokenizer(tmp_path))
    theirs = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    chat = [{"role": "user", "content": "abc"}]
    assert written.get_vocab() == theirs.get_vocab() == char_tokenizer().get_vocab()
    assert written.apply_chat_template(chat) == char_tokenizer().apply_chat_template(
        chat, return_dict=False
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"add_bos_token": True}, "sets add_bos_token"),
        ({"chat_template": [{"name": "a", "template": "b"}]}, "several chat templates"),
        ({"mask_token": "<mask>"}, "lacks the special token <mask>"),
        ({"tokenizer_class": "Qwen2Tokenizer"}, "its tokenizer is a Qwen2Tokenizer"),
    ],
)
def test_what_needs_transformers_is_refused_with_its_reason(
    directory, monkeypatch, change, reason
):
    assert obstacle(directory) == ""
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=reason):
        loading.load_tokenizer_named(str(directory))


def test_a_plain_directory_loads_without_transformers(directory, monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    assert isinstance(loading.load_tokenizer_named(str(directory)), PlainTokenizer)
    with pytest.raises(ConfigError, match="is no directory here but a hub name"):
        loading.load_tokenizer_named("owner/model")
