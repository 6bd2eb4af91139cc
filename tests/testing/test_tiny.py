"""Tiny model and its tokenizer."""

from __future__ import annotations

import pytest

from atroposlib.testing.tiny import ALPHABET, ASCII_ALPHABET, char_tokenizer, write_tiny_model


@pytest.mark.parametrize("alphabet", [ALPHABET, ASCII_ALPHABET])
def test_every_character_is_one_token_and_decodes_to_itself(alphabet):
    tokenizer = char_tokenizer(alphabet)
    ids = tokenizer.encode(alphabet, add_special_tokens=False)
    assert len(ids) == len(set(ids)) == len(alphabet)
    assert tokenizer.decode(ids) == alphabet


def test_the_chat_template_marks_roles_and_opens_the_answer():
    chat = [{"role": "user", "content": "hi"}]
    text = char_tokenizer().apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert text == "<|user|>hi<|end|><|assistant|>"


def test_the_same_seed_writes_the_same_weights(tmp_path):
    pytest.importorskip("torch")
    files = [
        write_tiny_model(tmp_path / name, seed=seed, hidden_size=16, num_layers=1)
        / "model.safetensors"
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, same, other = (file.read_bytes() for file in files)
    assert first == same
    assert first != other
