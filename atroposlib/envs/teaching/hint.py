"""The prompt that only the teacher reads: the hook ``teacher_prompt`` of an environment.

    def teacher_prompt(self, item): ...            or (self, item, prompt), the ids of the row's prompt

It returns chat messages, the text of a user's message, token ids, or None: the prompt of the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Any

from atroposlib.generation.chat.template import encode_prompt, render

HOOK = "teacher_prompt"


def teacher_hook(env: Any) -> Callable[..., Any] | None:
    """The method ``teacher_prompt`` of an environment; None if that name is no method."""
    if not inspect.isfunction(getattr_static(type(env), HOOK, None)):
        return None
    hook: Callable[..., Any] = getattr(env, HOOK)
    return hook


async def call_hint(hook: Callable[..., Any], item: Any, prompt: Sequence[int]) -> Any:
    """The result of ``hook(item)``, or of ``hook(item, prompt)`` if it takes two arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(hook).parameters.values()
    takes_prompt = sum(parameter.kind in kinds for parameter in parameters) > 1
    result = hook(item, list(prompt)) if takes_prompt else hook(item)
    return await result if inspect.isawaitable(result) else result


def hint_ids(hint: Any, tokenizer: Any) -> list[int] | None:
    """The token ids of what a hook returned.

    Raises TypeError: the value is no prompt.
    """
    if hint is None:
        return None
    if isinstance(hint, str):
        hint = [{"role": "user", "content": hint}]
    if isinstance(hint, Sequence) and hint:
        if all(isinstance(entry, int) for entry in hint):
            return list(hint)
        if all(isinstance(entry, dict) for entry in hint):
            return encode_prompt(tokenizer, render(tokenizer, hint))
    raise TypeError(
        f"{HOOK} returned {type(hint).__name__}: return messages, a text, token ids, or None"
    )
