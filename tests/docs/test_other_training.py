"""The commands of the page about other training run, in their order, on a tiny model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.cli.collect.collecting import dpo_gen, sft_gen
from atroposlib.testing.tiny import write_tiny_model
from tests.serving import served
from tests.trainer.supervised.answers import post_groups

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other-training.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COLLECT = {"data sft": sft_gen, "data dpo": dpo_gen}


def blocks(kind: str) -> list[str]:
    return [
        text for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if name == kind
    ]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    from example_trainer.supervised.commands import dpo, reward_model, sft

    train = {"train sft": sft, "train dpo": dpo, "train rm": reward_model}
    model = str(write_tiny_model(tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    monkeypatch.chdir(tmp_path)
    ran = []
    for line in "".join(blocks("sh")).splitlines():
        atropos, noun, verb, *words = shlex.split(line.replace("MODEL", model))
        assert atropos == "atropos"
        name = f"{noun} {verb}"
        if name in COLLECT:
            with served(create_app(open_store("memory"))) as api:
                post_groups(api, tokenizer)
                less = ["--num-seqs-to-save", "8", "--tasks-per-step", "4", "--api-url", api]
                assert COLLECT[name](words + less) == 0
        else:
            less = ["--device", "cpu", "--seq-len", "64", "--training-steps", "2"]
            assert train[name](words + less) == 0
        ran.append(name)
    assert ran == [*COLLECT, *train]

    (snippet,) = blocks("python")
    names = {"AutoModelForTokenClassification": AutoModelForTokenClassification}
    names |= {"torch": torch, "tokenizer": tokenizer, "prompt": "2+2?", "answer": "4"}
    exec(snippet, names)
    assert names["reward"].ndim == 0
