"""What the figures of density count."""

from __future__ import annotations

import pytest

from tests.repo.figures import density
from tests.repo.figures.hand_written import repository_of


@pytest.mark.parametrize(
    "code, spread",
    [
        ("f(*(a, b), c)", ["*(a, b)"]),
        ("f(*[a, b])", ["*[a, b]"]),
        ("rows = (*(a, b), *(c, d))", ["*(a, b)", "*(c, d)"]),
        ("rows = [*rows, c]", []),
        ("f(*rows, *(r for r in rows), **{'a': 1})", []),
        ("f(a, (b, c))", []),
    ],
)
def test_a_literal_that_is_spread_where_it_is_written_counts(code, spread):
    items = density.spread_literals(repository_of(atroposlib__a=code)).items
    assert [item.split(": ")[1] for item in items] == spread


@pytest.mark.parametrize(
    "body, calls",
    [
        ("    named = (a, b)\n    return Row(*named, c)\n", ["Row(*named)"]),
        ("    t = (a, b) if a else (b, a)\n    return g(*t)\n", ["g(*t)"]),
        ("    words = ('x', a)\n    run([*words, b])\n", []),
        ("    rows = [a, b]\n    return max(*rows)\n", []),
        ("    pair = split(a)\n    return Row(*pair)\n", []),
        ("    t = (a, b)\n    def g(t):\n        return h(*t)\n    return g\n", []),
    ],
)
def test_a_tuple_that_is_built_and_spread_in_one_function_counts(body, calls):
    code = f"def f(a, b, c):\n{body}"
    items = density.spread_tuples(repository_of(atroposlib__a=code)).items
    assert [item.split(": ")[1] for item in items] == calls
