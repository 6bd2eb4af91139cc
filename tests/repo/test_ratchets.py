"""Structural figures may fall and not rise: each has a bound, today's value.

`make ratchets` prints them. A change that improves a figure lowers its bound here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo import ratchets
from tests.repo.ratchets import FIGURES
from tests.repo.sources import Repository, Source, circles, load

BOUNDS: dict[str, float] = {
    "crowded source folders": 0,
    "crowded test folders": 0,
    "file circles": 0,
    "folder circles": 0,
    "class names with two meanings": 0,
    "base names used too often": 0,
    "loose words per 1,000": 0.5,
    "README lines": 150,
    "packages not under mypy --strict": 0,
    "writes into the runtime": 0,
    "attributes of the runtime": 18,
    "parameters that take all settings": 10,
    "files that take all settings": 6,
    "modules without a test, %": 2,
}
# Printed without a bound: new capabilities add modules and lines.
REPORTED = {"modules", "source lines"}
# By how much a figure may be below its bound.
SLACK = {"loose words per 1,000": 0.5, "README lines": 20, "modules without a test, %": 2}
MAX_LISTED = 40


@pytest.fixture(scope="session")
def repository(root, files) -> Repository:
    return load(root, files)


def complaint(name: str, today: float, bound: float, items: tuple[str, ...] = ()) -> str:
    """Error text for ``today``; empty if it is at its bound."""
    if today > bound:
        more = [f"... {len(items) - MAX_LISTED} more"] if len(items) > MAX_LISTED else []
        return "\n  ".join([f"{name}: {today:g}, bound {bound:g}", *items[:MAX_LISTED], *more])
    if round(bound - today, 6) > SLACK.get(name, 0):
        return f"{name}: {today:g} is better than {bound:g}: lower the bound to {today:g}"
    return ""


@pytest.mark.parametrize("name", BOUNDS)
def test_a_structural_figure_is_at_its_bound(repository, name):
    measured = FIGURES[name].measure(repository)
    problem = complaint(name, measured.value, BOUNDS[name], measured.items)
    assert not problem, problem


def test_every_figure_has_a_bound_or_is_only_reported():
    assert BOUNDS.keys() | REPORTED == FIGURES.keys()
    assert SLACK.keys() <= FIGURES.keys()


def test_a_figure_above_its_bound_is_reported_with_its_items():
    assert (
        complaint("file circles", 3, 2, ("a", "b", "c"))
        == "file circles: 3, bound 2\n  a\n  b\n  c"
    )


def test_a_figure_below_its_bound_asks_for_a_lower_bound():
    assert complaint("file circles", 2, 2) == ""
    assert complaint("file circles", 1, 2).endswith("lower the bound to 1")
    assert complaint("loose words per 1,000", 1.5, 2.0) == ""
    assert complaint("loose words per 1,000", 1.4, 2.0).endswith("lower the bound to 1.4")


def made_of(readme: str = "", pyproject: str = "", **texts: str) -> Repository:
    """Repository of files written ``atroposlib__x__y="text"`` for atroposlib/x/y.py."""
    paths = {Path(name.replace("__", "/") + ".py"): text for name, text in texts.items()}
    inits = {Path(str(path).replace("INIT", "__init__")): t for path, t in paths.items()}
    return Repository(tuple(Source(p, t) for p, t in inits.items()), readme, pyproject)


def test_imports_in_functions_and_for_type_checkers_count_in_cycles():
    repository = made_of(
        atroposlib__a="def f():\n    from atroposlib.b import g\n",
        atroposlib__b="if TYPE_CHECKING:\n    from .c import h\n",
        atroposlib__c="import atroposlib.a\n",
        atroposlib__d="from atroposlib import a\n",
    )
    assert ratchets.file_circles(repository).items == (
        "atroposlib.a atroposlib.b atroposlib.c",
    )


def test_two_import_cycles_are_counted_separately():
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a"}}
    assert circles(graph) == [["a", "b"], ["c", "d"]]


def test_a_package_that_re_exports_its_subfolders_forms_no_cycle():
    repository = made_of(
        atroposlib__INIT="from atroposlib.x.one import One\n",
        atroposlib__x__one="from atroposlib.types import T\n",
        atroposlib__y__two="from atroposlib import One\n",
        atroposlib__types="T = int\n",
    )
    assert ratchets.folder_circles(repository).items == ()
    assert repository.graph["atroposlib.y.two"] == {"atroposlib.x.one"}


def test_folders_that_import_each_other_form_a_cycle():
    repository = made_of(
        atroposlib__x__one="from atroposlib.y.two import b\n",
        atroposlib__x__other="a = 1\n",
        atroposlib__y__two="def f():\n    from atroposlib.x import other\n",
    )
    assert ratchets.folder_circles(repository).items == ("atroposlib/x atroposlib/y",)
    assert ratchets.file_circles(repository).value == 0


def test_a_class_counts_twice_only_where_it_is_defined_twice():
    repository = made_of(
        atroposlib__a="class Run: ...\nclass Job: ...\n",
        atroposlib__b="from atroposlib.a import Job\nOld = Job\n",
        example_trainer__c="class Run: ...\n",
    )
    names = ratchets.repeated_class_names(repository).items
    assert names == ("Run: atroposlib.a example_trainer.c",)


def test_code_and_identifiers_are_not_prose():
    text = '"""Whatever `says` does, ``for ever`` counts."""\nsays = 1  # x.says() told\n'
    found = ratchets.loose_words(made_of(atroposlib__a=text))
    assert found.items == (
        "atroposlib/a.py:1: Whatever",
        "atroposlib/a.py:2: told",
    )


def test_writes_into_the_runtime_count_outside_of_its_module():
    repository = made_of(
        atroposlib__a="class EnvRuntime(Base):\n    def f(self, env):\n        env.x = self.y = 1\n",
        atroposlib__b="class Base:\n    def g(self):\n        self.z: int = 0\n",
        atroposlib__c=(
            "def f(self, env):\n    env.x, n = 1, 2\n    env.s.y += 1\n"
            "    self._env.z = 1\n    self.env = env\n    self.other.x = 1\n"
        ),
    )
    found = [item.split(": ")[1] for item in ratchets.writes_into_runtime(repository).items]
    assert found == ["env.x", "env.s.y", "self._env.z"]
    assert ratchets.runtime_attributes(repository).items == ("y", "z")


def test_parameters_of_the_full_settings_type_are_found_in_any_annotation():
    repository = made_of(
        example_trainer__a="def f(c: 'TrainingConfig | None', d: int): ...\n",
        example_trainer__b="def g(*, c: config.TrainingConfig): ...\nx: TrainingConfig\n",
    )
    assert ratchets.settings_parameters(repository).value == 2
    assert ratchets.settings_files(repository).value == 2


def test_a_module_with_behaviour_needs_a_test_of_its_name():
    work = "def f():\n    return 1\n"
    repository = made_of(
        atroposlib__x__one=work,
        atroposlib__x__two=work,
        atroposlib__x__three=work,
        atroposlib__x__four=work,
        atroposlib__x__types="class P:\n    def f(self): ...\n",
        tests__test_one="",
        tests__api__test_x_two="",
        tests__test_three_when_slow="",
    )
    measured = ratchets.untested_modules(repository)
    assert (measured.value, measured.items) == (25.0, ("atroposlib/x/four.py",))


@pytest.mark.parametrize(
    "section, lacking",
    [
        ('files = ["atroposlib"]\nstrict = true', ("example_trainer",)),
        ('files = ["atroposlib", "example_trainer"]\nstrict = true', ()),
        ('files = ["atroposlib", "example_trainer"]', ("atroposlib", "example_trainer")),
    ],
)
def test_a_package_is_typed_if_mypy_reads_it_strictly(section, lacking):
    repository = made_of(pyproject=f"[tool.mypy]\n{section}\n[tool.other]\nx = 1\n")
    assert ratchets.packages_without_strict_types(repository).items == lacking
