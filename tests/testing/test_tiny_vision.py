"""Tiny vision-language models."""

from __future__ import annotations

import pytest

from atroposlib.testing.tiny_vision import FAMILIES, write_tiny_vision_model

pytest.importorskip("torch")
pytest.importorskip("PIL")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_writes_the_same_weights_with_a_processor(tmp_path, family):
    files = [
        write_tiny_vision_model(
            tmp_path / name, family, seed=seed, hidden_size=32, num_layers=1
        )
        / "model.safetensors"
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, same, different = (file.read_bytes() for file in files)
    assert first == same != different
    assert (tmp_path / "a" / "processor_config.json").is_file()
