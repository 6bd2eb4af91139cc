"""Values of arguments that a model wrote as bare text, by the JSON schema of the tool.

("12345", {"anyOf": [{"type": "string"}, {"type": "null"}]})  -->  "12345"
("True", {"type": "boolean"})                                 -->  True
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from atroposlib.text.tool_calls import MalformedCall, json_text, read_json_value, skip_space

_INTEGER = re.compile(r"[-+]?\d+(?:\.0+)?")
_NULLS = ("null", "None")
_MAX_REFS = 16  # depth limit of references to references
_ABSENT = object()


def written_value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """``text`` as the first alternative of ``schema`` that it can be; text if no alternative fits.

    JSON and the words of Python (True, None, {'a': 1}) are read, because chat templates write
    both. Text "null" or "None" is null wherever null is allowed.

    Args:
        root: the schema that references like ``#/$defs/Colour`` point into.
    """
    alternatives = list(_alternatives(schema, root))
    if (
        any("null" in _types(alternative) for alternative in alternatives)
        and text.strip() in _NULLS
    ):
        return None
    for alternative in alternatives:
        value = _as_alternative(text, alternative)
        if value is not _ABSENT:
            return value
    return text


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[Any]:
    if not isinstance(schema, Mapping) or depth > _MAX_REFS:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _alternatives(_resolve(reference, root), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(key)
        for alternative in inner if isinstance(inner, list) else ():
            yield from _alternatives(alternative, root, depth + 1)
    if any(key in schema for key in ("type", "enum", "const")):
        yield schema


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for part in reference.removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, Mapping) else None
    return target


def _types(schema: Mapping[str, Any]) -> list[str]:
    kind = schema.get("type")
    types = kind if isinstance(kind, list) else [kind]
    if schema.get("nullable"):
        types = [*types, "null"]
    return [name for name in types if isinstance(name, str)]


def _as_alternative(text: str, schema: Mapping[str, Any]) -> Any:
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list):
        return next((value for value in allowed if text in _spellings(value)), _ABSENT)
    for kind in _types(schema):
        read = _READERS.get(kind)
        value = _ABSENT if read is None else read(text)
        if value is not _ABSENT:
            return value
    return _ABSENT


def _spellings(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else (json_text(value), repr(value))


def _literal(text: str) -> Any:
    """The value of JSON, else of a Python literal with a JSON form."""
    try:
        value, end = read_json_value(text, 0)
        if skip_space(text, end) == len(text):
            return value
    except MalformedCall:
        pass
    try:
        value = ast.literal_eval(text.strip())
        read_json_value(json_text(value), 0)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _ABSENT
    return value


def _of_type(*types: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = _literal(text)
        return value if type(value) in types else _ABSENT

    return read


def _integer(text: str) -> Any:
    text = text.strip()
    return int(text.partition(".")[0]) if _INTEGER.fullmatch(text) else _ABSENT


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), _ABSENT)


_READERS: dict[str, Callable[[str], Any]] = {
    "string": lambda text: text,
    "integer": _integer,
    "number": _of_type(int, float),
    "boolean": _boolean,
    "object": _of_type(dict),
    "array": _of_type(list),
}
