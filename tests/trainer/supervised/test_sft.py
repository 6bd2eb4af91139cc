from __future__ import annotations

from atroposlib.cli.collect.collecting import sft_gen
from example_trainer.supervised import sft
from tests.trainer.supervised.pairs import metrics


def test_an_adapter_is_trained_and_saved_alone(collected, settings, tmp_path):
    path = collected[sft_gen]
    sft.train_sft(sft.SftConfig(**settings(path, lora=True, lora_r=4, epochs=2)))
    told = metrics(tmp_path)
    assert told[-1]["loss"] < told[0]["loss"]
    assert (tmp_path / "saved" / "final_adapter" / "adapter_model.safetensors").exists()
