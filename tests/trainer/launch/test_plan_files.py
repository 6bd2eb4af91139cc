"""Files of a run with any mistake: accepted, or a sentence that names the file."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from atroposlib.errors import ConfigError
from example_trainer.launch.check import submission_problems
from example_trainer.launch.plan import read_plan

RECIPES = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).resolve().parents[3] / "docs/recipes").glob("*.yaml"))
}
VALUES = st.sampled_from(
    [None, [], {}, "", "x", -1, 1.5, 10**30, -(10**30), True, [None], [[1]], {"a": {"b": 2}}]
    + [float("nan"), float("inf"), [{}], ["a", 1], {1: 2}, {True: 1}, {None: 1}, "\x00"]
)
MISSPELT = object()
ENV = ("environments", 0, "config", "env")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else inner:
        yield from places(part, (*path, key))


def with_mistake(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    root = {"": copy.deepcopy(document)}
    *outer, last = ("", *path)
    holder: Any = root
    for key in outer:
        holder = holder[key]
    if value is not MISSPELT:
        holder[last] = value
    elif isinstance(holder, dict) and path:
        holder[f"{last}z"] = holder.pop(last)
    return root[""]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans") / "run.yaml"


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(RECIPES)),
    number=st.integers(0, 200),
    value=VALUES | st.just(MISSPELT),
)
@example("teacher", 0, {True: 1})
def test_a_file_with_a_mistake_is_a_sentence_or_a_plan(
    file: Path, name: str, number: int, value: Any
) -> None:
    found = [*places(RECIPES[name])]
    write_and_read(file, with_mistake(RECIPES[name], found[number % len(found)], value))


def write_and_read(file: Path, document: Any) -> None:
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        list(submission_problems(read_plan([str(file)], []), plugins_here=False))
    except ConfigError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (ENV, "x", "config: env should be a mapping, not 'x'"),
        ((*ENV[:-1], "openai"), 3, "config: openai should be a mapping, not 3"),
        (
            (*ENV, "teacher", "base_url"),
            [None],
            "env.teacher.base_url should be text or a list",
        ),
        ((1,), 2, "1 is no setting: the name should be text"),
    ],
)
def test_a_foreign_value_is_named_with_its_file(
    file: Path, path: tuple[Any, ...], value: Any, problem: str
) -> None:
    document = with_mistake(RECIPES["teacher"], path, value)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_plan([str(file)], [])
    assert problem in str(raised.value) and "run.yaml" in str(raised.value)
