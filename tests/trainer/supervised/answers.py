"""Groups with a good and a bad answer to a sum, as an environment posts them."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from tests.trainer.rows import scored

PROMPTS = [f"<|user|>{a}+{b}?<|assistant|>" for a in range(3) for b in range(3)]


def good(prompt: str) -> str:
    return f"{int(prompt[8]) + int(prompt[10])}<|end|>"


def bad(prompt: str) -> str:
    return f"no {int(prompt[8]) + int(prompt[10]) + 1}<|end|>"


def post_groups(api: str, tokenizer: Any) -> None:
    """A good and a bad answer to each of eight prompts, as an environment would."""
    groups = []
    for prompt in PROMPTS[:8]:
        tokens = [tokenizer(prompt + end(prompt))["input_ids"] for end in (good, bad)]
        start = len(tokenizer(prompt)["input_ids"])
        groups.append(msgspec.to_builtins(scored(tokens, start, [1.0, -1.0])))
    httpx.post(f"{api}/scored_data_list", json=groups).raise_for_status()
