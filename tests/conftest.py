"""Options and markers for the whole suite.

slow       starts real processes or takes many seconds; `make check` leaves it out
gpu        needs a CUDA device; skipped without --run-gpu
providers  calls a real inference provider; skipped without --runproviders
"""

from __future__ import annotations

import os

import pytest

# Before any test imports a library that reads these once: no test reaches a hub, and
# calls to servers of our own on the loopback interface never go through a proxy.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for _name in ("NO_PROXY", "no_proxy"):
    _kept = [os.environ[_name]] if os.environ.get(_name) else []
    os.environ[_name] = ",".join([*_kept, "127.0.0.1", "localhost"])

MARKERS = {
    "slow": "starts real processes or takes many seconds",
    "gpu": "needs a CUDA device; skipped without --run-gpu",
    "providers": "calls a real inference provider; skipped without --runproviders",
}
NEEDED_OPTION = {"gpu": "--run-gpu", "providers": "--runproviders"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-gpu", action="store_true", help="run tests that need a GPU")
    parser.addoption(
        "--runproviders", action="store_true", help="run tests that call inference providers"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker, option in NEEDED_OPTION.items():
            if marker in item.keywords and not config.getoption(option):
                item.add_marker(pytest.mark.skip(reason=f"needs {option}"))
