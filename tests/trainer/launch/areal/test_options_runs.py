"""Whole files of AReaL through ``atropos-launch --config``: servers and environment from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.testing.tiny import write_tiny_model

REPO = Path(__file__).resolve().parents[4]
FILES = Path(__file__).parent / "files"
WORDS = [{"word": word} for word in ("abcd", "bcda", "cdab", "dabc", "acbd", "bdca")]
PROBLEMS = [{"question": f"{n} + 1?", "answer": f"so #### {n + 1}"} for n in range(4)]
TEXTS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(8)]
ENVIRONMENT = ("--env", str(FILES / "words_env.py"))
# Name of the file -> rows of its data, more words, steps of the run.
RUNS = {
    "grpo": (PROBLEMS, ("env.ensure_scores_are_not_same=false",), 2),
    "ppo": (WORDS, ENVIRONMENT, 2),
    "sft": (TEXTS, (), 4),
    "lora": (WORDS, ENVIRONMENT, 2),
    "async": (WORDS, ENVIRONMENT, 3),
}
OTHERS = sorted(RUNS.keys() - {"grpo", "sft"})


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("areal") / "tiny", max_positions=1024)


# Two in `make test`: the others differ from grpo in options that faster tests read.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["grpo", "sft", *(pytest.param(name, marks=pytest.mark.campaign) for name in OTHERS)],
)
def test_a_whole_file_of_areal_trains(name, model, tmp_path):
    rows, words, steps = RUNS[name]
    data = tmp_path / "gsm8k"
    data.mkdir()
    for split in ("train", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / f"{split}.jsonl").write_text(lines)
    section = "model" if name == "sft" else "actor"
    given = [f"{section}.path={model}", f"train_dataset.path={data}", "cluster.fileroot=here"]
    done = subprocess.run(
        [sys.executable, "-m", "example_trainer.launch", "--config", FILES / f"{name}.yaml"]
        + [*words, *given, "device=cpu"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (out,) = (path.parent for path in (tmp_path / "here").glob("*/*/metrics.jsonl"))
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [*range(1, steps + 1)]
    assert list((out / "checkpoints").glob("final_*/*.safetensors"))
