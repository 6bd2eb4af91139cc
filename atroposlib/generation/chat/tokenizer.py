"""Loading the tokenizer of a served model, where text has to be encoded or decoded here."""

from __future__ import annotations

from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import APIServerConfig
from atroposlib.utils.tokenizers.loading import load_tokenizer_named


def load_tokenizer(config: APIServerConfig) -> Any:
    """The config's tokenizer; ConfigError names the setting that would help."""
    named = config.tokenizer_name not in ("", "none")
    name = config.tokenizer_name if named else config.model_name
    try:
        return load_tokenizer_named(name)
    except (OSError, ValueError) as cause:
        raise ConfigError(
            f"tokenizer_name: no tokenizer can be loaded from {name!r}; "
            "name a model or a directory that has one"
        ) from cause
