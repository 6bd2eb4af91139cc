"""A rollout API of this process, and the directory of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.testing.tiny import char_tokenizer
from tests.serving import served


@pytest.fixture
def api() -> Iterator[str]:
    with served(create_app(open_store("memory"))) as url:
        yield url


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    char_tokenizer().save_pretrained(directory)
    return str(directory)
