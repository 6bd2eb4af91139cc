"""Values that a model wrote as bare text, by the alternatives of the schema."""

from __future__ import annotations

import pytest

from atroposlib.generation.chat.tool_parsers.written_values import written_value

DEFS = {"$defs": {"N": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}}


def either(*types):
    return {"anyOf": [{"type": name} for name in types]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12345", {"type": "string"}, "12345"),
        ("12345", either("string", "null"), "12345"),
        ("12345", either("integer", "string"), 12345),
        ("12a", either("integer", "string"), "12a"),
        ("12345", None, "12345"),
        ("12345", {"description": "any"}, "12345"),
        ("null", either("string", "null"), None),
        ("None", either("number", "null"), None),
        ("None", {"type": "string"}, "None"),
        ("3", {"type": ["integer", "null"]}, 3),
        ("null", {"type": "integer", "nullable": True}, None),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1", {"type": "integer", "enum": [1, 2]}, 1),
        ("True", {"const": True}, True),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("5.0", {"type": "integer"}, 5),
        ("5.5", {"type": "integer"}, "5.5"),
        ("9" * 40, {"type": "integer"}, int("9" * 40)),
        ("0.5", {"type": "number"}, 0.5),
        ("1e400", {"type": "number"}, "1e400"),
        ("NaN", {"type": "number"}, "NaN"),
        ('{"a": [1, null]}', {"type": "object"}, {"a": [1, None]}),
        ("{'a': [True, None]}", {"type": "object"}, {"a": [True, None]}),
        ("{1, 2}", {"type": "object"}, "{1, 2}"),
        ("[1, 'b']", {"type": "array"}, [1, "b"]),
        ("(1, 2)", {"type": "array"}, "(1, 2)"),
        ("__import__('os')", {"type": "object"}, "__import__('os')"),
        ("7", {"$ref": "#/$defs/N"}, 7),
        ("7", {"allOf": [{"$ref": "#/$defs/N"}]}, 7),
        ("7", {"$ref": "#/$defs/absent"}, "7"),
        ("7", {"$ref": "#/$defs/Loop"}, "7"),
    ],
)
def test_text_is_read_by_the_first_alternative_that_it_can_be(text, schema, value):
    found = written_value(text, schema, DEFS)
    assert found == value and type(found) is type(value)
