from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from example_trainer.checkpoint.exports import ModelExporter
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import adapter, loading
from example_trainer.model.model_dir import TrainerState, read_state, save_model


def states(run_id: str, steps: int) -> list[TrainerState]:
    return [TrainerState(run_id, step, step, step) for step in range(1, steps + 1)]


def names(cfg) -> list[str]:
    return sorted(path.name for path in Path(cfg.save_path).iterdir())


def save_all(cfg, policy, run_id: str, steps: int, per_epoch: int = 4) -> None:
    saver = ModelExporter(cfg, Ranks.single(), adapter=cfg.trains_adapter)
    for state in states(run_id, steps):
        saver.maybe(policy, state, epoch_ended=state.step % per_epoch == 0)


def test_step_and_epoch_export_intervals_are_independent(policy, config):
    cfg = config(checkpoint_interval=3, save_every_epochs=1)
    save_all(cfg, policy, "run", 9)
    assert names(cfg) == ["step_3", "step_4", "step_6", "step_8", "step_9"]


def test_without_an_interval_only_the_final_model_is_saved(policy, config):
    cfg = config(checkpoint_interval=0)
    save_all(cfg, policy, "run", 9)
    final = ModelExporter(cfg, Ranks.single(), adapter=cfg.trains_adapter).final(
        policy, states("run", 9)[-1]
    )
    assert names(cfg) == ["final_model"]
    assert read_state(str(final)) == TrainerState("run", 9, 9, 9)
    again = loading.load_policy(config(model_name=str(final)))
    assert all(map(torch.equal, policy.parameters(), again.parameters()))


def test_only_the_newest_of_this_run_are_kept(policy, config):
    cfg = config(checkpoint_interval=1)
    save_all(cfg, policy, "earlier", 2)
    save_model(policy, Path(cfg.save_path) / "step_99", states("run", 1)[0])
    cfg = config(checkpoint_interval=2, keep_saved=2)
    save_all(cfg, policy, "run", 8)
    # step_2 of the earlier run was written over, its step_1 and a later step are not ours.
    assert names(cfg) == ["step_1", "step_6", "step_8", "step_99"]


def test_an_adapter_is_saved_alone_and_the_tokenizer_at_the_end(config, model_dir):
    peft = pytest.importorskip("peft")
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cfg = config(lora=True, lora_r=2, checkpoint_interval=2, save_every_epochs=None)
    policy = loading.load_policy(cfg.model_copy(update={"lora": False}))
    adapter.wrap(policy.model, cfg)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01)
    save_all(cfg, policy, "run", 3)
    final = ModelExporter(cfg, Ranks.single(), adapter=cfg.trains_adapter).final(
        policy, states("run", 3)[-1]
    )
    assert names(cfg) == ["adapter_step_2", "final_adapter", "tokenizer"]
    assert len(load_file(final / adapter.WEIGHTS_FILE)) == len(policy.parameters())
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    with warnings.catch_warnings():  # peft asks transformers in a way that is going away
        warnings.simplefilter("ignore", FutureWarning)
        loaded = peft.PeftModel.from_pretrained(base, final)
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected, actual = policy.model(tokens).logits, loaded(tokens).logits
    assert torch.allclose(expected, actual, atol=1e-6)
    assert AutoTokenizer.from_pretrained(final.with_name("tokenizer"))("abc")["input_ids"]
