"""Names of versions."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.utils.models.version_names import named_version, versioned_name


@given(st.text(max_size=9), st.integers(0, 10**9))
def test_version_is_read_from_the_name_that_it_gave(name, version):
    assert named_version(versioned_name(name, version)) == version


@pytest.mark.parametrize(
    "name", ["policy", "policy@", "policy@main", "policy@-1", "policy@²", ""]
)
def test_other_names_have_no_version(name):
    assert named_version(name) is None
