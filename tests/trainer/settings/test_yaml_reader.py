"""Files of settings that hold none."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.settings.yaml_reader import load_yaml


def test_an_empty_file_is_no_setting(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert load_yaml(path) == {}


@pytest.mark.parametrize("data", [b"- a\n", b"word\n", b"\xff\xfe", b"a: [\n"])
def test_a_file_without_a_mapping_of_names_is_refused(tmp_path, data):
    path = tmp_path / "run.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="run.yaml"):
        load_yaml(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_yaml(tmp_path / "absent.yaml")
