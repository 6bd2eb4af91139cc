"""Options and markers for the whole suite.

slow       starts real processes or takes seconds; `make check` leaves it out, and slow_files.txt
alone      slow, and wants every core: several ranks, whole runs, timeouts of slow clients
campaign   slow, takes minutes and cores; `make campaign` runs it, `make test` does not
gpu        needs a CUDA device; skipped without --run-gpu
browser    drives the page with an installed Chromium; skipped without one
providers  calls a real inference provider; skipped without --runproviders
"""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from atroposlib.utils.command import logs
from tests.examples import register_profiles
from tests.slow_files import is_marked, slow_files

# Before any test imports a library that reads these once: no test reaches a hub, and
# calls to servers of our own on the loopback interface never go through a proxy.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; more processes than cores run
for _name in ("NO_PROXY", "no_proxy"):
    _kept = [os.environ[_name]] if os.environ.get(_name) else []
    os.environ[_name] = ",".join([*_kept, "127.0.0.1", "localhost"])

register_profiles()
# A context of TLS takes 20 ms for each client, of plain HTTP too.
ssl.create_default_context = functools.cache(ssl.create_default_context)
# Like an example of a property, no HTTP request has a short time limit.
for _field in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _field, 600.0)

MARKERS = {
    "slow": "starts real processes or takes many seconds",
    "alone": "slow, and runs while no other test does",
    "campaign": "slow, takes minutes; `make campaign` runs it and `make test` does not",
    "gpu": "needs a CUDA device; skipped without --run-gpu",
    "browser": "drives the page with an installed Chromium; skipped without one",
    "providers": "calls a real inference provider; skipped without --runproviders",
}
SLOW_FILES = slow_files()
HERE = Path(__file__).parent
OLD_FOLDER = Path("atroposlib/tests")
MODULES = itertools.count(1)
BY_TEXT = {
    "alone",
    "campaign",
    "hypothesis",
}  # a test with the mark is in a file with the word
NEEDED_OPTION = {"gpu": "--run-gpu", "providers": "--runproviders"}


@pytest.fixture(autouse=True)
def no_log_handler_outlives_its_test() -> Iterator[None]:
    """A command line that a test runs logs to that test's stderr, which is closed after it."""
    before = logging.root.handlers[:]
    names = ["uvicorn.error", *logs.OURS, *logs.NOISY]
    levels = {name: logging.getLogger(name).level for name in names}
    root_level = logging.root.level
    yield
    logging.captureWarnings(False)
    # Each setLevel empties the cache of every logger.
    for name, level in [("root", root_level), *levels.items()]:
        if (logger := logging.getLogger(name)).level != level:
            logger.setLevel(level)
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logs.ProcessHandler) and handler not in before:
            logging.root.removeHandler(handler)


@pytest.fixture(autouse=True, scope="module")
def what_modules_leave_slows_no_later_collection() -> Iterator[None]:
    """Free garbage after every eighth module, and leave the rest out of later collections.

    Without it the heap of a whole session grows to 1.2 GB and 240 threads, and each
    ``gc.collect()`` of a test takes over a second.
    """
    yield
    if next(MODULES) % 8 == 0:
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-gpu", action="store_true", help="run tests that need a GPU")
    parser.addoption(
        "--runproviders", action="store_true", help="run tests that call inference providers"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.args[:] = [present_path(word) for word in config.args]


def present_path(word: str) -> str:
    """The test that the original keeps below ``atroposlib/tests``, which is not here."""
    path, colons, inside = word.partition("::")
    if not path.startswith(OLD_FOLDER.as_posix()) or Path(path).exists():
        return word
    name = Path(path).name
    if Path(path) == OLD_FOLDER:
        return str(HERE)
    found = [*HERE.rglob(name)] if name.startswith("test_") else []
    return f"{found[0]}{colons}{inside}" if len(found) == 1 else word


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that `-m alone` or `-m "not slow"` exclude: their import takes 20 s."""
    if not collection_path.match("test_*.py"):
        return None
    if config.option.markexpr == "not slow":
        return collection_path in SLOW_FILES or is_marked(collection_path) or None
    words = set(config.option.markexpr.split(" or "))
    if not words <= BY_TEXT:
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if any(word in text for word in words) else True


def pytest_collection_finish() -> None:
    """Leave what collection made out of later collections of garbage: each took over a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        # Not item.keywords: those hold the names of folders too, such as a clone in gpu/.
        marked = {marker.name for marker in item.iter_markers()}
        if marked & {"alone", "campaign"} or item.path in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
        for marker, option in NEEDED_OPTION.items():
            if marker in marked and not config.getoption(option):
                item.add_marker(pytest.mark.skip(reason=f"needs {option}"))
