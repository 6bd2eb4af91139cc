"""Load a tokenizer by directory or hub name, without torch where possible."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.hub import require_model
from atroposlib.utils.tokenizers.plain import PlainTokenizer, obstacle, read_json

# Classes that add nothing to tokenizer.json.
PLAIN = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
INSTALL = "pip install 'atroposlib[transformers]'"


def load_tokenizer_named(name: str) -> Any:
    """The tokenizer of ``AutoTokenizer.from_pretrained(name)``.

    AutoTokenizer imports the model classes and torch, which takes three seconds and some
    hundred MB of every environment process. A directory without a special tokenizer class is
    loaded directly, and without transformers by :class:`PlainTokenizer`.

    Raises:
        ConfigError: there is no tokenizer of that name, or it needs transformers, which are
            not installed.
    """
    directory = Path(name)
    plain = _is_plain(directory)
    if find_spec("transformers") is None:
        reason = obstacle(directory) if plain else _not_plain(directory)
        if reason:
            raise ConfigError(
                f"the tokenizer {name}: {reason}, which needs transformers: {INSTALL}"
            )
        return PlainTokenizer(directory)
    require_model(name)
    import transformers

    kind = "PreTrainedTokenizerFast" if plain else "AutoTokenizer"
    try:
        return getattr(transformers, kind).from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"no tokenizer can be loaded from {name!r}: {reason}") from error


def _is_plain(directory: Path) -> bool:
    has_tokens = (directory / "tokenizer.json").is_file()
    return (
        has_tokens
        and read_json(directory / "tokenizer_config.json").get("tokenizer_class") in PLAIN
    )


def _not_plain(directory: Path) -> str:
    """The reason why a name is no directory that is read without transformers."""
    if not directory.is_dir():
        return f"{directory} is no directory here but a hub name"
    kind = read_json(directory / "tokenizer_config.json").get("tokenizer_class")
    return f"its tokenizer is a {kind}" if kind else f"{directory} has no tokenizer.json"
