"""The calls that users make on a tokenizer give the same forms from every tokenizer."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from atroposlib.utils.tokenizers.forms import ids_class, with_ids
from atroposlib.utils.tokenizers.loading import cache_dir, load_tokenizer_named
from atroposlib.utils.tokenizers.plain import PlainTokenizer, obstacle
from atroposlib.utils.tokenizers.qwen_fixed_tokenizer import QwenFixedTokenizer

SMOLLM2 = cache_dir() / "smollm2-135m-instruct"
GENERATION = """{% for m in messages %}<|{{ m.role }}|>
{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}
{%- else %}{{ m.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
CHAT = [{"role": "user", "content": "how are you?"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "fine, and you?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
WITH_NULLS = [*CHAT, {"role": "assistant", "content": "x", "tool_calls": None}]
TEXT = "two words, and 3 more."


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    made = {name: tmp_path_factory.mktemp(name) for name in ("tiny", "marked")}
    char_tokenizer(ASCII_ALPHABET).save_pretrained(made["tiny"])
    marked = char_tokenizer(ASCII_ALPHABET)
    marked.chat_template = GENERATION
    marked.save_pretrained(made["marked"])
    return {**made, **({"smollm2": SMOLLM2} if SMOLLM2.is_dir() else {})}


@pytest.fixture(scope="module", params=["tiny", "marked", "smollm2"])
def directory(request, directories):
    if request.param not in directories:
        pytest.skip("the cached model is not here")
    return directories[request.param]


@pytest.fixture(scope="module")
def ours(directory):
    return load_tokenizer_named(str(directory))


@pytest.fixture(scope="module")
def theirs(directory):
    return AutoTokenizer.from_pretrained(str(directory))


@pytest.fixture(scope="module")
def plain(directory):
    assert obstacle(directory) == ""
    return PlainTokenizer(directory)


CALLS = {
    "encode": lambda t: t.encode(TEXT),
    "encode without special tokens": lambda t: t.encode(TEXT, add_special_tokens=False),
    "encode, cut": lambda t: t.encode(TEXT, truncation=True, max_length=5),
    "call": lambda t: t(TEXT)["input_ids"],
    "call, attribute": lambda t: t(TEXT).input_ids,
    "call, mask": lambda t: t(TEXT)["attention_mask"],
    "call, batch": lambda t: t([TEXT, "x"])["input_ids"],
    "call, padded": lambda t: dict(t([TEXT, "x"], padding=True)),
    "call, to a length": lambda t: dict(t(["x"], padding="max_length", max_length=9)),
    "call, numpy": lambda t: t([TEXT, "x"], padding=True, return_tensors="np")["input_ids"],
    "decode": lambda t: t.decode(t.encode(TEXT)),
    "decode an id": lambda t: t.decode(5),
    "decode numpy": lambda t: t.decode(np.array(t.encode(TEXT))),
    "decode without special tokens": lambda t: t.decode(
        t.apply_chat_template(ANSWERED, return_dict=False), skip_special_tokens=True
    ),
    "batch_decode": lambda t: t.batch_decode([t.encode(TEXT), t.encode("x")]),
    "tokenize": lambda t: t.tokenize(TEXT),
    "ids to tokens": lambda t: t.convert_ids_to_tokens([5, 6, 7]),
    "id to token": lambda t: t.convert_ids_to_tokens(5),
    "tokens to ids": lambda t: t.convert_tokens_to_ids(t.tokenize(TEXT)),
    "token to id": lambda t: t.convert_tokens_to_ids(t.eos_token),
    "tokens to text": lambda t: t.convert_tokens_to_string(t.tokenize(TEXT)),
    "special ids": lambda t: (t.eos_token_id, t.pad_token_id, t.bos_token_id, t.unk_token_id),
    "special texts": lambda t: (t.eos_token, t.pad_token, t.bos_token, t.unk_token),
    "all special": lambda t: (sorted(t.all_special_tokens), sorted(t.all_special_ids)),
    "added tokens": lambda t: sorted(t.added_tokens_decoder),
    "length": len,
    "vocab_size": lambda t: t.vocab_size,
    "vocabulary": lambda t: t.get_vocab(),
}
CHATS = {
    "text": {"tokenize": False},
    "text with a prompt": {"tokenize": False, "add_generation_prompt": True},
    "text with tools": {"tokenize": False, "tools": TOOLS, "add_generation_prompt": True},
    "ids": {},
    "ids, asked for": {"tokenize": True, "return_dict": False},
    "ids with a prompt": {"add_generation_prompt": True},
    "ids with tools": {"tools": TOOLS},
    "ids of another template": {"chat_template": GENERATION},
    "continued": {"continue_final_message": True},
    "continued text": {"continue_final_message": True, "tokenize": False},
    "cut": {"truncation": True, "max_length": 4},
    "numpy": {"return_tensors": "np"},
}
MAPPINGS = {
    "mapping": {"return_dict": True},
    "mapping of numpy": {"return_dict": True, "return_tensors": "np"},
    "mask of the assistant": {"return_dict": True, "return_assistant_tokens_mask": True},
}


def as_plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("call", CALLS)
def test_every_tokenizer_answers_alike(ours, theirs, plain, call):
    expected = as_plain(CALLS[call](theirs))
    assert as_plain(CALLS[call](ours)) == expected
    assert as_plain(CALLS[call](plain)) == expected


@pytest.mark.parametrize("options", CHATS)
@pytest.mark.parametrize(
    "chat", [CHAT, ANSWERED, WITH_NULLS], ids=["asked", "answered", "nulls"]
)
def test_chats_become_ids_or_text(ours, theirs, plain, chat, options):
    given = CHATS[options]
    expected = as_plain(theirs.apply_chat_template(chat, **{"return_dict": False, **given}))
    for tokenizer in (ours, plain):
        made = tokenizer.apply_chat_template(chat, **given)
        assert as_plain(made) == expected
        is_text = given.get("tokenize") is False
        assert is_text == isinstance(made, str)


@pytest.mark.parametrize("options", MAPPINGS)
@pytest.mark.filterwarnings("ignore")
def test_a_mapping_is_made_where_it_is_asked_for(ours, theirs, plain, options):
    expected = theirs.apply_chat_template(ANSWERED, **MAPPINGS[options])
    for tokenizer in (ours, plain):
        made = tokenizer.apply_chat_template(ANSWERED, **MAPPINGS[options])
        assert made.keys() == expected.keys()
        assert {k: as_plain(v) for k, v in made.items()} == {
            k: as_plain(v) for k, v in expected.items()
        }


def test_a_mask_without_its_mapping_is_asked_for_with_it(directories):
    for made in (PlainTokenizer, load_tokenizer_named):
        tokenizer = made(directories["marked"])
        encoded = tokenizer.apply_chat_template(ANSWERED, return_assistant_tokens_mask=True)
        trained = [t for t, m in zip(encoded["input_ids"], encoded["assistant_masks"]) if m]
        assert tokenizer.decode(trained) == "fine, and you?<|end|>"


def test_several_chats_are_a_batch(ours, theirs, plain):
    chats = [CHAT, ANSWERED]
    expected = theirs.apply_chat_template(chats, return_dict=False)
    texts = theirs.apply_chat_template(chats, tokenize=False)
    for tokenizer in (ours, plain):
        assert tokenizer.apply_chat_template(chats) == expected
        assert tokenizer.apply_chat_template(chats, tokenize=False) == texts
        padded = tokenizer.apply_chat_template(chats, padding=True, return_tensors="np")
        assert padded.shape == (2, max(map(len, expected)))


@pytest.mark.parametrize(
    "given",
    [{}, {"continue_final_message": True, "add_generation_prompt": True}],
    ids=["no message", "two ends"],
)
def test_chats_that_cannot_be_rendered_are_refused_by_all(ours, plain, given):
    for tokenizer in (ours, plain):
        with pytest.raises(ValueError):
            tokenizer.apply_chat_template(ANSWERED if given else [], **given)


def test_the_tokenizer_is_still_one_of_transformers(ours, theirs, tmp_path):
    assert isinstance(ours, type(theirs)) and isinstance(ours, PreTrainedTokenizerFast)
    assert type(ours).__name__ == type(theirs).__name__
    signature = inspect.signature(ours.apply_chat_template)
    assert signature.parameters["return_dict"].default is False
    assert signature.parameters.keys() == (
        inspect.signature(theirs.apply_chat_template).parameters.keys()
    )
    ours.mine = 1
    copies = [pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), copy.copy(ours)]
    for other in copies:
        assert (type(other), other.mine) == (type(ours), 1)
        assert other.apply_chat_template(CHAT) == ours.apply_chat_template(CHAT)
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    again = AutoTokenizer.from_pretrained(str(tmp_path / "ours"))
    assert type(again) is type(theirs) and again.get_vocab() == theirs.get_vocab()


def test_the_plain_tokenizer_is_copied_and_saved_too(plain, tmp_path):
    expected = plain.apply_chat_template(ANSWERED)
    plain.save_pretrained(tmp_path)
    again = load_tokenizer_named(str(tmp_path))
    for other in (pickle.loads(pickle.dumps(plain)), copy.deepcopy(plain), again):
        assert other.apply_chat_template(ANSWERED) == expected
        assert other.get_vocab() == plain.get_vocab()
        assert other.eos_token_id == plain.eos_token_id


def test_a_return_dict_by_its_place_counts(ours):
    place = [*inspect.signature(ours.apply_chat_template).parameters].index("return_dict")
    defaults = [
        p.default for p in inspect.signature(ours.apply_chat_template).parameters.values()
    ]
    assert "input_ids" in ours.apply_chat_template(CHAT, *defaults[1:place], True)


def test_a_tokenizer_of_another_library_is_left_as_it_is():
    class Foreign:
        def apply_chat_template(self, conversation, tokenize=True): ...

    foreign = Foreign()
    assert with_ids(foreign) is foreign and type(foreign) is Foreign
    assert ids_class(Foreign) is Foreign
    bare = object()
    assert with_ids(bare) is bare


def test_the_fixed_tokenizer_gives_ids(directories):
    fixed = QwenFixedTokenizer(str(directories["tiny"]))
    assert all(isinstance(token, int) for token in fixed.apply_chat_template(CHAT))


def test_a_tokenizer_that_users_load_themselves_is_tokenized_for_the_trainer(ours, theirs):
    assert tokenize_for_trainer(theirs, ANSWERED) == tokenize_for_trainer(ours, ANSWERED)
