"""Request fields that switch on the reasoning of hosted models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from atroposlib.errors import ConfigError

EFFORT_TOKENS = {
    "none": 1024,
    "minimal": 3200,
    "low": 6400,
    "medium": 16000,
    "high": 25600,
    "xhigh": 30400,
}
VALID_REASONING_EFFORTS = tuple(EFFORT_TOKENS)
OFFICIAL_OPENAI_HOST = "api.openai.com"
OFFICIAL_OPENAI_URL = f"https://{OFFICIAL_OPENAI_HOST}/v1"


@dataclass
class ReasoningConfig:
    """Effort or token budget of reasoning. Either switches reasoning on.

    Raises ConfigError for an ``effort`` outside :data:`VALID_REASONING_EFFORTS`.
    """

    enabled: bool = False
    effort: str | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in VALID_REASONING_EFFORTS:
            raise ConfigError(
                f"Invalid reasoning_effort: {self.effort!r}; "
                f"one of {', '.join(VALID_REASONING_EFFORTS)}"
            )
        if self.effort is not None or self.max_tokens is not None:
            self.enabled = True

    @classmethod
    def from_env_config(cls, env_config: Any) -> ReasoningConfig:
        """Read ``thinking_mode``, ``reasoning_effort`` and ``max_reasoning_tokens``."""
        return cls(
            enabled=env_config.thinking_mode,
            effort=env_config.reasoning_effort,
            max_tokens=env_config.max_reasoning_tokens,
        )

    def is_reasoning_kwargs_active(self) -> bool:
        return self.enabled

    def build_extra_body(
        self, base_url: str | None = None, use_max_tokens: bool = False
    ) -> dict[str, Any] | None:
        """Fields to add to a chat request, or None if reasoning is off.

        The official OpenAI API takes ``reasoning_effort``; all other hosts take OpenRouter's
        ``reasoning`` object, in which the effort wins over the token budget unless
        ``use_max_tokens`` turns the effort into a budget.
        """
        if not self.enabled:
            return None
        if OFFICIAL_OPENAI_HOST in (base_url or ""):
            return {"reasoning_effort": self.effort or "medium"}
        reasoning: dict[str, Any] = {"enabled": True}
        if self.effort is not None and use_max_tokens:
            reasoning["max_tokens"] = EFFORT_TOKENS[self.effort]
        elif self.effort is not None:
            reasoning["effort"] = self.effort
        elif self.max_tokens is not None:
            reasoning["max_tokens"] = self.max_tokens
        return {"reasoning": reasoning}


def is_official_openai(base_url: str) -> bool:
    """Whether the host is exactly the official host, which alone may get its key."""
    return urlsplit(base_url).hostname == OFFICIAL_OPENAI_HOST


def in_official_form(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``kwargs`` as the official API requires for reasoning models.

    The API rejects ``max_tokens`` and a temperature that is not 1.
    """
    form = {**kwargs, "temperature": 1.0}
    if "max_tokens" in form:
        form["max_completion_tokens"] = form.pop("max_tokens")
    return form
