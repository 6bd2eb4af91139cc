"""Function calls of the Berkeley leaderboard (BFCL): questions, functions, allowed values.

    pip download --no-deps bfcl-eval==2026.3.23
    python environments/bfcl.py serve --env.dataset_path bfcl_eval-2026.3.23-py3-none-any.whl

The rows are read out of the wheel (Apache-2.0), or from a folder with its files. The score is 1 for
exactly the expected calls in any order, each with allowed values; of the category irrelevance,
in which no function fits, for a reply without a call.
"""

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from atroposlib.envs import environment
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.settings.sentences import did_you_mean
from atroposlib.text.lines import json_lines
from atroposlib.utils.datasets import PATH_OPTION

ANSWERED = ("simple_python", "multiple", "parallel", "parallel_multiple")
CATEGORIES = (*ANSWERED, "irrelevance")
ABSENT = ""  # among the allowed values: the argument may be left out
# types of BFCL -> types of JSON schema
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
HOW = "pip download --no-deps bfcl-eval==2026.3.23, and name the wheel"


def rows_of(path: str | None, name: str) -> list[dict[str, Any]]:
    """Rows of a .json file with an object per line, in the wheel or a folder."""
    if path is None:
        raise DatasetUnavailable(f"bfcl: {PATH_OPTION} is not set: {HOW}")
    try:
        if path.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                text = wheel.read(f"bfcl_eval/data/{name}").decode("utf-8")
        else:
            text = (Path(path) / name).read_text(encoding="utf-8")
        return json_lines(text)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DatasetUnavailable(f"bfcl: {path} has no {name}: {error}; {HOW}") from error


def schema(node: Any) -> Any:
    """A description of parameters with the types of JSON schema."""
    if isinstance(node, list):
        return [schema(value) for value in node]
    if not isinstance(node, dict):
        return node
    made = {key: schema(value) for key, value in node.items()}
    if isinstance(made.get("type"), str):
        made["type"] = TYPES.get(made["type"], made["type"])
        if made["type"] == "any":
            del made["type"]
    return made


def tool(function: dict[str, Any]) -> dict[str, Any]:
    made = {**function, "parameters": schema(function["parameters"])}
    return {"type": "function", "function": made}


def tasks(config: Any) -> list[dict[str, Any]]:
    """Tasks {"id", "messages", "tools", "expected"} of the categories. Raises as rows_of."""
    rows = []
    for category in config.categories:
        if category not in CATEGORIES:
            hint = did_you_mean(category, CATEGORIES)
            raise ConfigError(f"--env.categories: {category!r} is none of {CATEGORIES}{hint}")
        file = f"BFCL_v4_{category}.json"
        answers = (
            rows_of(config.dataset_path, f"possible_answer/{file}")
            if category in ANSWERED
            else []
        )
        expected = {row["id"]: row["ground_truth"] for row in answers}
        for row in rows_of(config.dataset_path, file):
            tools = [tool(function) for function in row["function"]]
            task = {"id": row["id"], "messages": row["question"][0], "tools": tools}
            rows.append({**task, "expected": expected.get(row["id"], [])})
    return rows


# --- the comparison -----------------------------------------------------------------------


def plain(text: str) -> str:
    """Lower case without spaces and marks, as BFCL compares texts."""
    return re.sub(r"[ ,./\-_*^'\"]", "", text).lower()


def same(value: Any, allowed: Any) -> bool:
    """Whether a value equals this allowed value."""
    if isinstance(allowed, str):
        return isinstance(value, str) and plain(value) == plain(allowed)
    if isinstance(allowed, bool) or isinstance(value, bool) or allowed is None:
        return value is allowed
    if isinstance(allowed, Mapping):
        return isinstance(value, Mapping) and fits(value, allowed)
    if isinstance(allowed, list):
        whole = isinstance(value, list) and len(value) == len(allowed)
        return whole and all(map(same, value, allowed))
    return isinstance(value, (int, float)) and value == allowed


def fits(arguments: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> bool:
    """Whether each argument has an allowed value, and only optional arguments are absent."""
    known = set(arguments) <= set(allowed)
    return known and all(
        (
            any(same(arguments[key], value) for value in values)
            if key in arguments
            else ABSENT in values
        )
        for key, values in allowed.items()
    )


def match_calls(
    calls: Sequence[tuple[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the calls are the expected calls, each once, in any order."""
    if not expected:
        return not calls
    ((name, allowed),) = expected[0].items()
    return any(
        match_calls([*calls[:i], *calls[i + 1 :]], expected[1:])
        for i, (called, arguments) in enumerate(calls)
        if called == name and isinstance(arguments, Mapping) and fits(arguments, allowed)
    )


def calls_of(reply: Any) -> list[tuple[str, Any]]:
    """Names and arguments; arguments that are no JSON are None."""
    calls = []
    for call in reply.tool_calls:
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except json.JSONDecodeError:
            arguments = None
        calls.append((call["function"]["name"], arguments))
    return calls


@environment(
    tasks,
    settings={
        "dataset_path": (
            str | None,
            Field(default=None, description="wheel of bfcl-eval, or a folder with its files"),
        ),
        "categories": (
            list[str],
            Field(default=[*ANSWERED], description=f"some of {', '.join(CATEGORIES)}"),
        ),
    },
    group_size=8,
    max_tokens=256,
)
async def bfcl(task, model):
    reply = await model.chat(task["messages"], tools=task["tools"])
    calls, expected = calls_of(reply), task["expected"]
    if not expected:
        return not calls and bool(reply.strip())
    return len(calls) == len(expected) and match_calls(calls, expected)


if __name__ == "__main__":
    bfcl.cli()
