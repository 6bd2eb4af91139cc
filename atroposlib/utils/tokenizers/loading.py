"""A tokenizer by the name of its directory or hub repository, without torch where possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Classes that say no more than "what stands in tokenizer.json".
PLAIN = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})


def load_tokenizer_named(name: str) -> Any:
    """What ``AutoTokenizer.from_pretrained(name)`` gives.

    AutoTokenizer imports the model classes and torch with them: three seconds and some
    hundred MB of every environment process. A directory whose files name no special class
    needs none of that.

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
