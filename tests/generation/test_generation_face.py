"""The names that ``atroposlib.generation`` itself exports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from atroposlib import generation


@pytest.mark.parametrize("name", generation.__all__)
def test_every_exported_name_is_the_object_of_its_module(name: str) -> None:
    assert getattr(generation, name).__name__ == name
    assert generation.HOME_OF.keys() == set(generation.__all__)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        generation.nothing


def test_importing_the_package_imports_none_of_its_modules() -> None:
    code = "import sys, atroposlib.generation; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "atroposlib.generation" in loaded
    assert [name for name in loaded if name.startswith("atroposlib.generation.")] == []
