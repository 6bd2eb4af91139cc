"""Proxy for agents: OpenAI's and Anthropic's APIs in front of token-exact sessions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProxyLimits:
    """Limits of sessions, bodies and streams."""

    max_sessions: int = 4096
    idle_s: float = 3600.0  # a session without calls for longer is closed
    max_body_bytes: int = 64 * 2**20
    keep_alive_s: float = 5.0  # between keep-alive frames of a stream that is still sampling
