"""Layer numbers in one word, as the original's flags take them."""

from __future__ import annotations

import re

from atroposlib.errors import ConfigError


def parse_layers(text: str) -> list[int]:
    """Layer numbers from "20-31", "0-3,28-31" or "0,5,7".

    Raises:
        ConfigError: the text is none of these.
    """
    layers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"layer indices look like 0-3,28-31 or 0,5,7, not {text!r}")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(layers)
