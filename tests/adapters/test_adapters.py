"""What the adapters share: imports, and errors of packages as one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from atroposlib.adapters import convert_errors, import_package
from atroposlib.errors import ConfigError


def test_no_adapter_imports_its_package_at_its_own_import():
    program = (
        "import sys\n"
        "from atroposlib.adapters import gymnasium, mcp, openenv, reasoning_gym, textarena\n"
        "from atroposlib.adapters import aviary, inspect_ai, nemo_gym, textworld\n"
        "from atroposlib.adapters import verifiers, verifiers_v0\n"
        "names = 'gymnasium mcp openenv websockets reasoning_gym textarena textworld nltk'.split()\n"
        "names += ['inspect_ai', 'aviary', 'verifiers']\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_missing_package_is_one_line_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"gymnasium.*pip install 'atropos-rl\[gymnasium\]'"):
        import_package("gymnasium", "gymnasium")


def test_an_error_of_a_package_becomes_one_line_with_its_place():
    with (
        pytest.raises(ConfigError, match=r"^--env.env_id x: no game \(KeyError: 'y'\)$"),
        convert_errors((KeyError,), "--env.env_id x", "no game"),
    ):
        {}["y"]
    with (
        pytest.raises(ConfigError, match="^row 3: ValueError: no number$"),
        convert_errors((KeyError, ValueError), "row 3"),
    ):
        raise ValueError("no number")
