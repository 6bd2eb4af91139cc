"""APIs that agents call, by their path below ``/v1``: a module each, and a line here."""

from typing import Any

from atroposlib.generation.proxy.apis.agent_api import AgentApi
from atroposlib.generation.proxy.apis.anthropic import MessagesApi
from atroposlib.generation.proxy.apis.chat import ChatApi, TextApi
from atroposlib.generation.proxy.apis.responses import ResponsesApi

APIS: dict[str, type[AgentApi[Any]]] = {
    "chat/completions": ChatApi,
    "completions": TextApi,
    "responses": ResponsesApi,
    "messages": MessagesApi,
}

__all__ = ["APIS", "AgentApi"]
