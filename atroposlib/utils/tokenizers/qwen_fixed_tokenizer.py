"""Qwen tokenizer with a chat template that never rewrites earlier turns."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from atroposlib.utils.tokenizers.forms import with_ids

TEMPLATE = "qwen_fixed.jinja"


class QwenFixedTokenizer:
    """A tokenizer with the bundled chat template; all else is the tokenizer's.

    Args:
        model_name_or_path: model directory or hub name, as for ``AutoTokenizer.from_pretrained``.
        kwargs: passed on to it.
    """

    def __init__(self, model_name_or_path: str, **kwargs: Any) -> None:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(model_name_or_path, **kwargs)
        self.tokenizer: Any = with_ids(loaded)
        template = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
        self.tokenizer.chat_template = template

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # not set yet while an object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.tokenizer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tokenizer(*args, **kwargs)

    def __len__(self) -> int:
        return len(self.tokenizer)
