"""CONFIG.md says what the models say, and the models say enough."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Literal, Optional

import pytest


@pytest.fixture(scope="module")
def generator(root):
    path = root / "scripts/generate_config.py"
    spec = importlib.util.spec_from_file_location("generate_config", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_config_md_is_current(root):
    command = [sys.executable, "scripts/generate_config.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_option_has_a_sentence(generator):
    silent = [
        f"{section.target}.{name}"
        for section in generator.SECTIONS
        for name, field in generator.load(section.target).model_fields.items()
        if not field.description
    ]
    assert silent == []


def test_types_read_as_one_would_write_them(generator):
    assert generator.type_text(Optional[int]) == "int | None"
    assert generator.type_text(list[str]) == "list[str]"
    assert generator.type_text(dict[str, float]) == "dict[str, float]"
    assert generator.type_text(Literal["a", "b"]) == "'a' | 'b'"
