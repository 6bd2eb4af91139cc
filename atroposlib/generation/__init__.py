"""How a rollout samples a model: engines, routing, token-exact sessions, agent proxy.

from atroposlib.generation import APIServerConfig, ServerManager, serving_proxy
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atroposlib.generation.chat.template import load_tokenizer
    from atroposlib.generation.configs import APIServerConfig, ServerBaseline
    from atroposlib.generation.proxy.in_process import RunningProxy, serving_proxy
    from atroposlib.generation.routing.manager import ServerManager
    from atroposlib.generation.sessions.managed import (
        ManagedServer,
        ManagedServerAdapter,
        SequenceNode,
    )
    from atroposlib.generation.sessions.remote import ProxyManagedServer, create_proxy_session

__all__ = [
    "APIServerConfig",
    "ManagedServer",
    "ManagedServerAdapter",
    "ProxyManagedServer",
    "RunningProxy",
    "SequenceNode",
    "ServerBaseline",
    "ServerManager",
    "create_proxy_session",
    "load_tokenizer",
    "serving_proxy",
]
HOME_OF = {
    **dict.fromkeys(("APIServerConfig", "ServerBaseline"), "configs"),
    **dict.fromkeys(
        ("ManagedServer", "ManagedServerAdapter", "SequenceNode"), "sessions.managed"
    ),
    **dict.fromkeys(("ProxyManagedServer", "create_proxy_session"), "sessions.remote"),
    **dict.fromkeys(("RunningProxy", "serving_proxy"), "proxy.in_process"),
    "ServerManager": "routing.manager",
    "load_tokenizer": "chat.template",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that importing a small module below this package stays cheap.
    if name in HOME_OF:
        return getattr(importlib.import_module(f"{__name__}.{HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
