"""What the adapters share: imports, episodes, room for a turn."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from types import SimpleNamespace

import pytest

from atroposlib.adapters import fits, import_package, training_episodes
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


def test_episodes_of_two_seeds_are_different_and_none_is_evaluated():
    games = (SimpleNamespace(env_id="g-v0", seed=seed) for seed in (0, 1))
    one, two = (list(islice(training_episodes(game, "g 1.0"), 3)) for game in games)
    assert one[1] == {
        "id": "g-v0/1000001",
        "seed": 1_000_001,
        "source": {"package": "g 1.0", "env_id": "g-v0", "seed": 1_000_001},
    }
    assert {t["id"] for t in one}.isdisjoint(t["id"] for t in two)


def test_a_turn_fits_up_to_the_token_limit():
    config = SimpleNamespace(max_tokens=10, max_token_length=100)
    session = SimpleNamespace(tokenizer=SimpleNamespace(encode=str.split))
    model = SimpleNamespace(session=session, row_tokens=50)
    assert fits(model, "a b c d e f g h", config)  # 50 + 8 + 32 + 10
    assert not fits(model, "a b c d e f g h i", config)
    assert fits(model, "a b c d e f g h i", config, used=40)
    model.session = None  # a server without a tokenizer here
    assert fits(model, "x" * 32, config) and not fits(model, "x" * 36, config)
