"""How much code an everyday operation runs may fall and not rise.

`python -m tests.repo.paths` lists the functions and the deepest stack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.paths import OPERATIONS, Recorder, definitions, record
from tests.repo.sources import Source

# Today's value and the value to fall to.
BOUNDS = {
    "post one group": {
        # One stored form: a JSON post becomes arrays and a file, which a binary one is already.
        "functions": (213, 150),
        "function lines": (2120, 1450),
        "deepest stack": (12, 12),
    },
    "managed row": {
        "functions": (144, 110),
        # The seal of a sampled span costs 3 functions and 65 lines.
        # A request whose connection is being opened ends with its client.
        "function lines": (1441, 1050),
        "deepest stack": (14, 11),
    },
    "claim a batch": {
        "functions": (219, 165),
        "function lines": (2175, 1650),  # a body of JSON names its length where it can
        "deepest stack": (12, 12),
    },
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_code_that_an_operation_runs_stays_within_its_bounds(operation):
    recording = record(operation)
    bounds = {figure: bound for figure, (bound, _) in BOUNDS[operation].items()}
    over = {f: (n, bounds[f]) for f, n in recording.figures.items() if n > bounds[f]}
    listed = "\n  ".join([" > ".join(recording.deepest), *recording.functions])
    assert not over, f"{operation}, today and bound: {over}\n  {listed}"
    assert all(today > 0 for today in recording.figures.values())


def test_every_operation_has_a_bound():
    assert BOUNDS.keys() == OPERATIONS.keys()


MODULE = """
def outer(a):
    def inner():
        return a

    return inner


@decorated
@twice
def second():
    return [row for row in rows]
"""


@pytest.mark.parametrize(
    "first_lines, functions, lines",
    [
        ([], 0, 0),
        ([2], 1, 5),
        ([2, 3], 2, 5),
        ([3], 1, 2),
        ([9], 1, 2),
        ([2, 9], 2, 7),
        ([11], 0, 0),
    ],
)
def test_lines_of_functions_count_once_and_without_decorators(first_lines, functions, lines):
    source = Source(Path("atroposlib/a.py"), MODULE)
    assert definitions(source, first_lines) == (functions, lines)


def test_frames_of_the_product_alone_make_the_stack():
    from atroposlib.errors import boundary

    recorder = Recorder()

    def enter() -> None:
        with boundary("env", 1, "score"):
            pass

    with recorder.installed(), recorder.recording():
        enter()
    assert recorder.deepest
    assert list(recorder.functions) == ["atroposlib/errors.py"]
    assert all("enter" not in name for name in recorder.deepest)
