"""Model names that cannot be loaded fail before anything is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.hub import is_path, require_model


@pytest.mark.parametrize(
    "name", ["./model", "../model", "~/m", "/m", "runs/a/model", "tests/m"]
)
def test_a_path_without_a_directory_is_named(name, monkeypatch):
    monkeypatch.chdir(os.path.dirname(__file__).split("/tests/")[0])
    assert is_path(name)
    with pytest.raises(ConfigError, match=f"no directory {name}$"):
        require_model(name)


def test_a_directory_is_accepted_and_a_hub_name_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_model(str(tmp_path))
    assert not is_path("owner/name") and not is_path("name")


def test_without_the_hub_one_request_is_made_and_the_name_is_reported(unused_tcp_port):
    code = (
        "from huggingface_hub import constants\n"
        "from atroposlib.utils.tokenizers.hub import require_model\n"
        "try:\n    require_model('owner/absent')\n"
        "except ValueError as error:\n    print(error, constants.is_offline_mode())\n"
    )
    hub = f"http://127.0.0.1:{unused_tcp_port}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"},
    )
    assert done.stdout.startswith("no directory owner/absent") and "True" in done.stdout
