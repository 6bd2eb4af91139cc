"""Environments as separate processes, started by the documented commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tokenizer_dir(tmp_path):
    char_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def command(script, mode, url, tokenizer, *flags):
    words = [sys.executable, f"environments/{script}", mode]
    words += ["--openai.base_url", f"{url}/v1", "--openai.model_name", "fake"]
    words += ["--env.tokenizer_name", str(tokenizer), "--env.use_wandb", "false", *flags]
    return words


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_arithmetic(mode, url, tokenizer, *flags):
    words = command("arithmetic_server.py", mode, url, tokenizer, *flags)
    subprocess.run(words, cwd=ROOT, env=environment(), timeout=600, check=True)


def test_process_mode_writes_groups_and_an_html_page(tokenizer_dir, tmp_path):
    out = tmp_path / "out.jsonl"
    flags = ["--env.total_steps", "2", "--env.data_path_to_save_groups", str(out)]
    with FakeInference(reply=lambda prompt, i: "7").running() as url:
        run_arithmetic("process", url, tokenizer_dir, *flags)
    groups = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(g["tokens"]) for g in groups] == [8, 8]
    assert groups[0]["metadata"]["env"] == "arithmetic"
    assert out.with_suffix(".html").is_file()


def test_evaluate_mode_writes_results_and_settings(tokenizer_dir, tmp_path):
    flags = ["--env.data_dir_to_save_evals", str(tmp_path / "evals")]
    with FakeInference(reply=lambda prompt, i: "7").running() as url:
        run_arithmetic("evaluate", url, tokenizer_dir, *flags)
    assert {path.name for path in (tmp_path / "evals").iterdir()} == {
        "evaluate_config.yaml",
        "metrics.json",
        "samples.jsonl",
        "transcripts.html",
        "transcripts.jsonl",
    }


def test_an_invalid_setting_is_one_error_line_and_exit_status_2(tokenizer_dir):
    words = command("copy_server.py", "serve", "http://127.0.0.1:9", tokenizer_dir)
    ended = subprocess.run(
        [*words, "--env.group_size", "0"],
        cwd=ROOT,
        env=environment(),
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "group_size" in ended.stderr and "Traceback" not in ended.stderr


def test_sigint_ends_an_environment_that_waits_for_the_api(tokenizer_dir):
    words = command("copy_server.py", "serve", "http://127.0.0.1:9", tokenizer_dir)
    process = subprocess.Popen(
        [*words, "--env.rollout_server_url", "http://127.0.0.1:9"],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if "waits for" in line:
            break
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "Traceback" not in rest
