"""Tokenizers from the fast loader and from AutoTokenizer are equal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

MESSAGES = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cab"}]


@pytest.fixture
def directory(tmp_path):
    char_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_plain_directory_loads_the_same_tokenizer_as_auto_tokenizer(directory):
    quick, auto = load_tokenizer_named(str(directory)), AutoTokenizer.from_pretrained(
        directory
    )
    assert type(quick) is type(auto)
    assert quick.get_vocab() == auto.get_vocab()
    assert quick.special_tokens_map == auto.special_tokens_map
    assert quick.chat_template == auto.chat_template
    rendered = quick.apply_chat_template(MESSAGES, tokenize=False)
    assert rendered == auto.apply_chat_template(MESSAGES, tokenize=False)
    assert quick.encode(rendered) == auto.encode(rendered)


def test_a_tokenizer_loads_without_torch(directory):
    program = (
        "import sys; from atroposlib.utils.tokenizers.loading import load_tokenizer_named as load;"
        f"load({str(directory)!r}); print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr


def test_a_special_class_is_left_to_auto_tokenizer(directory):
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "tokenizer_class": "NobodysTokenizer"}))
    assert load_tokenizer_named(str(directory)).get_vocab() == char_tokenizer().get_vocab()


def test_a_name_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no tokenizer can be loaded from"):
        load_tokenizer_named(str(tmp_path))
