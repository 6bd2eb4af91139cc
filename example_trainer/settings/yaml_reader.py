"""Reader of a YAML file of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.text.yaml_words import parse_yaml
from atroposlib.utils.cli import at_home


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a file; ConfigError if the file is missing, or no mapping with names."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read {path}: {reason.lower()}") from error
    tree = at_home(parse_yaml(text, str(path)))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds no settings: a mapping such as 'lr: 1e-5' is wanted")
    return tree
