"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.cli.collect.collecting import dpo_gen, sft_gen
from example_trainer.model import loading
from tests.serving import served
from tests.trainer.supervised.answers import post_groups


@pytest.fixture(scope="module")
def collected(model_dir, tmp_path_factory):
    """Write the files of the two commands from groups that an environment posted."""
    tokenizer = loading.tokenizer(str(model_dir))
    directory = tmp_path_factory.mktemp("collected")
    paths = {}
    for command in (sft_gen, dpo_gen):
        with served(create_app(open_store("memory"))) as api:
            post_groups(api, tokenizer)
            paths[command] = directory / f"{command.args[0].name}.jsonl"
            flags = ["--api-url", api, "--tokenizer", str(model_dir), "--tasks-per-step", "4"]
            words = [str(paths[command]), *flags, "--num-seqs-to-save", "8"]
            assert command(words) == 0
    return paths


@pytest.fixture
def settings(model_dir, tmp_path):
    def make(path, **more):
        defaults = {
            "model_name": str(model_dir),
            "train_file": str(path),
            "device": "cpu",
            "optimizer": "adamw",
            "lr": 3e-3,
            "seq_len": 64,
            "batch_size": 4,
            "gradient_accumulation_steps": 1,
            "epochs": 6,
            "save_path": str(tmp_path / "saved"),
            "log_dir": str(tmp_path / "logs"),
        }
        return {**defaults, **more}

    return make
