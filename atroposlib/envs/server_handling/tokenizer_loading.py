"""Loading the tokenizer of a served model, where text has to be encoded or decoded here."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.server_handling.configs import APIServerConfig
from atroposlib.errors import ConfigError


def load_tokenizer(config: APIServerConfig) -> Any:
    """AutoTokenizer of the config; ConfigError names the setting that would help."""
    from transformers import AutoTokenizer

    named = config.tokenizer_name not in ("", "none")
    name = config.tokenizer_name if named else config.model_name
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as cause:
        raise ConfigError(
            f"tokenizer_name: no tokenizer can be loaded from {name!r}; "
            "name a model or a directory that has one"
        ) from cause
