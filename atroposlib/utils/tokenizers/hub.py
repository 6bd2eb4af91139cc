"""Check of a model name before anything is loaded: a directory, the hub, or its cache."""

from __future__ import annotations

import os
from pathlib import Path

from atroposlib.errors import ConfigError

HUB_TIMEOUT_S = 5.0  # the hub's own client tries for more than a minute


def is_path(name: str) -> bool:
    """Whether ``name`` is a path, and no hub name such as ``owner/name``."""
    inside = "/" in name and (name.count("/") > 1 or Path(name).parent.is_dir())
    return inside or name.startswith((".", "~", "/")) or Path(name).exists()


def require_model(name: str) -> None:
    """Check that ``name`` is a directory, or a model of the hub that can be loaded now.

    If the hub does not answer one request, its client goes offline. Raises ConfigError.
    """
    if Path(name).is_dir():
        return
    if is_path(name):
        raise ConfigError(f"no directory {name}")
    import httpx
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.is_offline_mode():
        try:
            httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
            return
        except httpx.HTTPError:
            constants.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"] = True, "1"
    files = ("config.json", "tokenizer_config.json")
    if not any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
        raise ConfigError(f"no directory {name}, and no model of that name without the hub")
