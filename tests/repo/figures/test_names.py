"""What the figures of names count."""

from __future__ import annotations

import pytest

from tests.repo.figures import names
from tests.repo.figures.hand_written import repository_of
from tests.repo.figures.measured import Function
from tests.repo.sources import PACKAGES, load


def test_a_class_counts_twice_only_where_it_is_defined_twice():
    repository = repository_of(
        atroposlib__a="class Run: ...\nclass Job: ...\n",
        atroposlib__b="from atroposlib.a import Job\nOld = Job\n",
        example_trainer__c="class Run: ...\n",
    )
    items = names.repeated_class_names(repository).items
    assert items == ("Run: atroposlib.a example_trainer.c",)


def test_a_public_function_has_several_homes_where_two_modules_define_it():
    repository = repository_of(
        atroposlib__a="def parse(): ...\ndef load(): ...\ndef _own(): ...\ndef main(): ...\n",
        atroposlib__b="from atroposlib.a import load\nasync def parse(): ...\n",
        example_trainer__c="def _own(): ...\ndef main(): ...\nclass C:\n    def load(self): ...\n",
        environments__d="def load(): ...\n",
    )
    measured = names.repeated_function_names(repository)
    assert measured.items == ("parse: atroposlib.a atroposlib.b",)
    assert measured.value == 66.7  # two of three: parse, parse, load


def test_functions_of_a_registry_share_their_name_and_their_namesakes_elsewhere_do_not():
    repository = repository_of(
        example_trainer__losses__a="def loss(): ...\n",
        example_trainer__losses__b="def loss(): ...\ndef text(): ...\n",
        example_trainer__c="def loss(): ...\ndef text(): ...\n",
    )
    assert names.repeated_function_names(repository).items == (
        "text: example_trainer.losses.b example_trainer.c",
    )


@pytest.mark.parametrize("registry", names.REGISTRIES, ids=lambda registry: registry.reason)
def test_every_name_of_a_registry_stands_in_several_of_its_modules(root, files, registry):
    homes = [
        node.name
        for source in load(root, files).under(*PACKAGES)
        for node in source.tree.body
        if isinstance(node, Function) and registry.has(node.name, source.name)
    ]
    assert {name for name in homes if homes.count(name) > 1} == registry.names


@pytest.mark.parametrize(
    "name, is_counted",
    [
        *[(name, True) for name in ("made", "_joined", "played", "kept")],
        *[(name, False) for name in ("joined_run", "is_kept", "read", "set", "embed", "feed")],
    ],
)
def test_a_function_named_by_a_participle_alone_counts(name, is_counted):
    repository = repository_of(atroposlib__a=f"class C:\n    def {name}(self): ...\n")
    assert len(names.participle_functions(repository).items) == is_counted


def test_properties_and_variables_may_be_participles():
    text = "class C:\n    @cached_property\n    def kept(self): ...\nmade = 1\n"
    text += "def joined(): ...\ndef join(): ...\n"
    measured = names.participle_functions(repository_of(atroposlib__a=text))
    assert (measured.value, measured.items) == (500, ("atroposlib/a.py:5: joined",))


def test_each_use_of_a_vague_variable_counts():
    text = "for one in rows:\n    found = one.other\n\nf(given=told)\n"
    measured = names.vague_variables(repository_of(atroposlib__a=text))
    assert [item.split(": ")[1] for item in measured.items] == ["one", "found", "one", "told"]
    assert measured.value == 1000  # four uses in four lines


def test_a_base_name_is_used_too_often_the_third_time():
    repository = repository_of(
        atroposlib__a__store="", atroposlib__b__store="", example_trainer__store="",
        atroposlib__a__row="", atroposlib__b__row="", atroposlib__a__cli="",
        atroposlib__b__cli="", atroposlib__c__cli="",
    )  # fmt: skip
    assert names.repeated_base_names(repository).items == (
        "store: atroposlib/a atroposlib/b example_trainer",
    )
