"""Typed functions as tools: schemas and results of calls."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs.function_env.tools import result_message, tool_schema
from atroposlib.errors import ConfigError


async def weather(city: str, days: int = 1) -> dict:
    """Forecast for a city.

    One line per day.
    """
    return {"city": city, "sunny": [True] * days}


def fails(reason: str) -> str:
    raise OSError(reason)


def call(name, arguments):
    return {"id": "call-1", "function": {"name": name, "arguments": arguments}}


def test_the_tool_schema_is_derived_from_the_signature():
    assert tool_schema(weather) == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Forecast for a city.\n\nOne line per day.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "default": 1},
                },
                "required": ["city"],
            },
        },
    }
    assert tool_schema(tool_schema(weather)) == tool_schema(weather)


async def test_a_tool_is_called_with_validated_arguments():
    message = await result_message([weather], call("weather", '{"city": "Oslo", "days": 2}'))
    assert (message["role"], message["tool_call_id"]) == ("tool", "call-1")
    assert json.loads(message["content"]) == {"city": "Oslo", "sunny": [True, True]}


@pytest.mark.parametrize(
    ("name", "arguments", "mistake"),
    [
        ("wether", "{}", "there is no tool 'wether', only ['weather']"),
        ("weather", "{}", "city: Field required"),
        (
            "weather",
            '{"city": "Oslo", "days": "two"}',
            "days: Input should be a valid integer",
        ),
        ("weather", "{", "arguments: Invalid JSON"),
    ],
)
async def test_an_invalid_tool_call_returns_an_error_message_and_does_not_raise(
    name, arguments, mistake
):
    message = await result_message([weather], call(name, arguments))
    assert message["content"].startswith(f"error: {mistake}")


async def test_an_exception_inside_a_tool_propagates_to_the_rollout():
    with pytest.raises(OSError, match="disk"):
        await result_message([fails], call("fails", '{"reason": "disk"}'))


def test_a_tool_without_type_annotations_is_rejected():
    with pytest.raises(ConfigError, match="parameter 'x' needs a type"):
        tool_schema(lambda x: x)
    with pytest.raises(ConfigError, match="no .args"):
        tool_schema(lambda *args: args)


class Echo:
    name, description, schema = "echo", "Repeat.", {"type": "object"}

    async def call(self, arguments):
        return arguments


async def test_a_tool_object_has_its_own_schema_and_takes_any_json_object():
    (shown,) = [tool_schema(Echo())["function"]]
    assert shown == {
        "name": "echo",
        "description": "Repeat.",
        "parameters": {"type": "object"},
    }
    assert (await result_message([Echo()], call("echo", '{"a": 1}')))["content"] == '{"a": 1}'
    for wrong in ("[1]", "{", "1"):
        said = (await result_message([Echo()], call("echo", wrong)))["content"]
        assert said == "error: the arguments are not a JSON object"
    assert (
        "only ['echo', 'fails']"
        in (await result_message([Echo(), fails], call("no", "{}")))["content"]
    )


async def test_a_method_is_a_tool_that_sees_its_object():
    class Counter:
        total = 0

        def add(self, number: int) -> int:
            self.total += number
            return self.total

    counter = Counter()
    assert (await result_message([counter.add], call("add", '{"number": 4}')))[
        "content"
    ] == "4"
    assert counter.total == 4
