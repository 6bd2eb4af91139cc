"""Load a tokenizer by directory or hub name, without torch where possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Classes that add nothing to tokenizer.json.
PLAIN = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})


def load_tokenizer_named(name: str) -> Any:
    """The tokenizer of ``AutoTokenizer.from_pretrained(name)``.

    AutoTokenizer imports the model classes and torch, which takes three seconds and some
    hundred MB of every environment process. A directory without a special tokenizer class is
    loaded directly.

    Raises:
        OSError, ValueError: there is no tokenizer of that name.
    """
    if _is_plain(Path(name)):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(name)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def _is_plain(directory: Path) -> bool:
    config = directory / "tokenizer_config.json"
    if not (config.is_file() and (directory / "tokenizer.json").is_file()):
        return False
    return json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") in PLAIN
