"""Tools: Python functions, with the schema of their signature, and objects with their own.

    async def weather(city: str, day: int = 0) -> str:
        \"\"\"Forecast for a city.\"\"\"

A wrong call (unknown name, arguments that do not fit) gets the error as its result, so that the
model can correct it. An exception inside the tool is a failure of the rollout.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Union, runtime_checkable

from pydantic import BaseModel, ValidationError, create_model

from atroposlib.envs.function_env.rewards import call_user
from atroposlib.envs.rollout.groups import plain
from atroposlib.errors import ConfigError, definition_of


@runtime_checkable
class ToolObject(Protocol):
    """A tool with its own schema, for example a tool of an MCP server.

    A true attribute ``done`` after a call ends :meth:`Model.use_tools`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]  # JSON schema of the arguments

    async def call(self, arguments: dict[str, Any]) -> Any: ...


# A function, an object, or OpenAI's description, which is shown and not called.
Tool = Union[Callable[..., Any], ToolObject, Mapping[str, Any]]


def tool_schema(tool: Tool) -> dict[str, Any]:
    """OpenAI's description of ``tool``; a description is returned unchanged.

    Raises ConfigError: a parameter has no type, or takes any number of arguments.
    """
    if isinstance(tool, Mapping):
        return dict(tool)
    if isinstance(tool, ToolObject):
        described = {"name": tool.name, "description": tool.description}
        return {"type": "function", "function": {**described, "parameters": dict(tool.schema)}}
    parameters = _arguments(tool).model_json_schema()
    parameters.pop("title", None)
    for described in parameters.get("properties", {}).values():
        described.pop("title", None)
    function = {"name": tool.__name__, "parameters": parameters}
    if tool.__doc__:
        function["description"] = inspect.cleandoc(tool.__doc__)
    return {"type": "function", "function": function}


def _arguments(tool: Callable[..., Any]) -> type[BaseModel]:
    types = typing.get_type_hints(tool)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(tool).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {tool.__name__}: no *args or **kwargs")
        if name not in types:
            at = f" ({place})" if (place := definition_of(tool)) else ""
            raise ConfigError(f"tool {tool.__name__}{at}: parameter {name!r} needs a type")
        required = parameter.default is parameter.empty
        fields[name] = (types[name], ... if required else parameter.default)
    made: type[BaseModel] = create_model(tool.__name__, **fields)
    return made


async def result_message(tools: Sequence[Tool], call: Mapping[str, Any]) -> dict[str, Any]:
    """The ``tool`` message with the result of a tool call."""
    function = call["function"]
    by_name = {tool_name(tool): tool for tool in tools if not isinstance(tool, Mapping)}
    tool = by_name.get(function["name"])
    if tool is None:
        content = f"error: there is no tool {function['name']!r}, only {sorted(by_name)}"
    elif isinstance(tool, ToolObject):
        arguments = object_in(function["arguments"])
        content = "error: the arguments are not a JSON object"
        if arguments is not None:
            content = _text(await tool.call(arguments))
    else:
        try:
            parsed = _arguments(tool).model_validate_json(function["arguments"] or "{}")
        except ValidationError as error:
            mistakes = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
                for e in error.errors()
            )
            content = f"error: {mistakes}"
        else:
            values = {name: getattr(parsed, name) for name in type(parsed).model_fields}
            content = _text(await call_user(tool, **values))
    return {"role": "tool", "tool_call_id": call.get("id"), "content": content}


def tool_name(tool: Callable[..., Any] | ToolObject) -> str:
    return tool.name if isinstance(tool, ToolObject) else tool.__name__


def object_in(text: str | None) -> dict[str, Any] | None:
    """The arguments of a call; None if they are not a JSON object."""
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    return json.dumps(plain(result), ensure_ascii=False, default=str)
