"""What the figures of structure count."""

from __future__ import annotations

import pytest

from tests.repo.figures import structure
from tests.repo.figures.hand_written import repository_of
from tests.repo.sources import circles


def test_imports_in_functions_and_for_type_checkers_count_in_cycles():
    repository = repository_of(
        atroposlib__a="def f():\n    from atroposlib.b import g\n",
        atroposlib__b="if TYPE_CHECKING:\n    from .c import h\n",
        atroposlib__c="import atroposlib.a\n",
        atroposlib__d="from atroposlib import a\n",
    )
    assert structure.file_circles(repository).items == (
        "atroposlib.a atroposlib.b atroposlib.c",
    )


def test_two_import_cycles_are_counted_separately():
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a"}}
    assert circles(graph) == [["a", "b"], ["c", "d"]]


def test_a_package_that_re_exports_its_subfolders_forms_no_cycle():
    repository = repository_of(
        atroposlib__INIT="from atroposlib.x.one import One\n",
        atroposlib__x__one="from atroposlib.types import T\n",
        atroposlib__y__two="from atroposlib import One\n",
        atroposlib__types="T = int\n",
    )
    assert structure.folder_circles(repository).items == ()
    assert repository.graph["atroposlib.y.two"] == {"atroposlib.x.one"}


def test_folders_that_import_each_other_form_a_cycle():
    repository = repository_of(
        atroposlib__x__one="from atroposlib.y.two import b\n",
        atroposlib__x__other="a = 1\n",
        atroposlib__y__two="def f():\n    from atroposlib.x import other\n",
    )
    assert structure.folder_circles(repository).items == ("atroposlib/x atroposlib/y",)
    assert structure.file_circles(repository).value == 0


def test_writes_into_the_runtime_count_outside_of_its_module():
    repository = repository_of(
        atroposlib__a="class EnvRuntime(Base):\n    def f(self, env):\n        env.x = self.y = 1\n",
        atroposlib__b="class Base:\n    def g(self):\n        self.z: int = 0\n",
        atroposlib__c=(
            "def f(self, env):\n    env.x, n = 1, 2\n    env.s.y += 1\n"
            "    self._env.z = 1\n    self.env = env\n    self.other.x = 1\n"
        ),
    )
    found = [item.split(": ")[1] for item in structure.writes_into_runtime(repository).items]
    assert found == ["env.x", "env.s.y", "self._env.z"]
    assert structure.runtime_attributes(repository).items == ("y", "z")


def test_parameters_of_the_full_settings_type_are_found_in_any_annotation():
    repository = repository_of(
        example_trainer__a="def f(c: 'TrainingConfig | None', d: int): ...\n",
        example_trainer__b="def g(*, c: config.TrainingConfig): ...\nx: TrainingConfig\n",
    )
    assert structure.settings_parameters(repository).value == 2
    assert structure.settings_files(repository).value == 2


def test_a_module_with_behaviour_needs_a_test_of_its_name():
    work = "def f():\n    return 1\n"
    repository = repository_of(
        atroposlib__x__one=work,
        atroposlib__x__two=work,
        atroposlib__x__three=work,
        atroposlib__x__four=work,
        atroposlib__x__types="class P:\n    def f(self): ...\n",
        tests__test_one="",
        tests__api__test_x_two="",
        tests__test_three_when_slow="",
    )
    measured = structure.untested_modules(repository)
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
    repository = repository_of(pyproject=f"[tool.mypy]\n{section}\n[tool.other]\nx = 1\n")
    assert structure.packages_without_strict_types(repository).items == lacking


@pytest.mark.parametrize(
    "code, written",
    [
        ("def f(policy):\n    policy.padded = True\n", ["policy.padded"]),
        ("def f(a, *, b):\n    a.x.y += 1\n    b.z, n = 1, 2\n", ["a.x.y", "b.z"]),
        ("def f(a):\n    def g():\n        a.x = 1\n    return g\n", ["a.x"]),
        ("class C:\n    def f(self):\n        self.fleet.follow = 1\n", ["self.fleet.follow"]),
        ("class C:\n    def f(self):\n        self.x = self.y = 1\n", []),
        ("class C:\n    def f(cls):\n        cls.x: int = 1\n", []),
        ("def f():\n    row = Row()\n    row.x = 1\n    return row\n", []),
        ("def f(a):\n    a[0] = 1\n    print(a.x)\n", []),
        ("app.x = 1\n", []),
        ("def f(app):\n    app.openapi = 1\n    app.title = 2\n", ["app.title"]),
        ("class C:\n    def f(self, ctx):\n        ctx.x = self.ctx.y = 1\n", ["self.ctx.y"]),
    ],
)
def test_a_write_into_a_parameter_or_a_part_of_self_is_one_into_another_object(code, written):
    items = structure.writes_into_others(repository_of(atroposlib__a=code)).items
    assert [item.split(": ")[1] for item in items] == written
