"""References of a setting to variables of the environment."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.settings.references import with_variables


def test_variables_stand_for_their_values():
    text = "postgresql://a:${DB_PASSWORD}@${HOST}/a?x=$y"
    variables = {"DB_PASSWORD": "s${HOST}", "HOST": "db"}
    assert with_variables(text, variables, "store") == "postgresql://a:s${HOST}@db/a?x=$y"


def test_a_variable_that_is_not_set_is_named_under_the_place():
    with pytest.raises(ConfigError, match="^run.yaml:2: store: the environment variable A is"):
        with_variables("${A}", {}, "run.yaml:2: store")
