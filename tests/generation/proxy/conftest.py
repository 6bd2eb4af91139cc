from __future__ import annotations

from collections.abc import Iterator

import pytest

from atroposlib.testing.fake_inference import FakeInference


@pytest.fixture
def fake_url() -> Iterator[str]:
    with FakeInference().running() as root_url:
        yield root_url
