"""A proxy that gives any agent a ``base_url`` and its owner the tokens.

    python -m atroposlib.generation.proxy.main --config servers.json

    POST /sessions/create -> uuid, api_key
    agent: base_url http://localhost:9100/<uuid>/v1, or /v1 with the session's API key
    GET /<uuid>/nodes, GET /sessions/<uuid>/rows, DELETE /<uuid>

It speaks OpenAI's chat, completions and Responses and Anthropic's Messages, with tools and
streams. See docs/agents.md.
"""

from __future__ import annotations

from atroposlib.generation.proxy.app import create_app
from atroposlib.generation.proxy.cli import main
from atroposlib.generation.proxy.sessions import Limits

__all__ = ["Limits", "create_app", "main"]

if __name__ == "__main__":
    raise SystemExit(main())
