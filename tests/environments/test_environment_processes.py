"""Environments as a user starts them: ``serve`` on the tiny model and the rollout API, signals.

``process`` and ``evaluate`` of all environments: test_every_environment.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from atroposlib.client import RolloutClient
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.wire import Registration
from tests.environments.cases import ENVIRONMENTS, GROUP, module_file

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("GSM8K_DIR", ROOT.parent / "shared" / "data"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
WAIT_S = 600.0


@contextmanager
def started(module, *options):
    """A process that prints its URL when it serves; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    try:
        yield re.search(r"https?://\S+?:\d+", process.stdout.readline())[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    "name", ["gsm8k_server_teacher_distill", "tool_use_turnlevel_advantage", "sft_loader"]
)
def test_serve_mode_sends_groups_to_a_trainer_and_ends_on_a_signal(
    name, flags_of, tiny_server, tmp_path
):
    """Of each kind of group on the wire one; ``process`` makes those of all environments."""
    flags = flags_of(name, *tiny_server) | {"env.ensure_scores_are_not_same": "false"}
    given = [f"--{key}={value}" for key, value in flags.items()]
    words = [sys.executable, module_file(ENVIRONMENTS[name]), "serve", *given]
    taken = take_batches(words, tmp_path)
    assert len(taken) == 2
    sequences = sum(len(group.tokens) for batch in taken for group in batch)
    assert sequences == 2 * 2 * GROUP


def take_batches(words, folder):
    """Be the trainer of a run until two batches have been taken and acknowledged."""
    taken = []
    with started("atroposlib.cli.run_api", "--data-dir", str(folder / "queue")) as url:
        trainer = RolloutClient(url, give_up_after_s=WAIT_S)
        trainer.register(
            Registration(
                wandb_group="",
                wandb_project="",
                batch_size=2 * GROUP,
                max_token_len=1200,
                checkpoint_dir="",
                save_checkpoint_interval=0,
                starting_step=0,
                num_steps=100,
            )
        )
        log = folder / "environment.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*words, f"--env.rollout_server_url={url}"],
                cwd=ROOT,
                env=ENVIRONMENT,
                stderr=stderr,
            )
            try:
                while len(taken) < 2:
                    claimed = trainer.claim(wait_s=5.0)
                    if claimed.batch is None:
                        assert process.poll() is None, log.read_text()[-4000:]
                        continue
                    taken.append(claimed.batch)
                    trainer.ack(claimed)
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0, log.read_text()[-4000:]
            finally:
                process.kill()
                process.wait()
                trainer.close()
    return taken


@pytest.mark.skipif(
    not (SHARED / "gsm8k_test.jsonl").is_file(), reason="no GSM8K: GSM8K_DIR names its folder"
)
def test_gsm8k_runs_on_the_real_problems(command, tiny_server, tmp_path):
    more = {"dataset_path": SHARED, "eval_problems": 4}
    out = tmp_path / "groups.jsonl"
    command(
        "gsm8k", "process", *tiny_server, data_path_to_save_groups=out, total_steps=2, **more
    )
    assert len(out.read_text().splitlines()) == 2
    command("gsm8k", "evaluate", *tiny_server, data_dir_to_save_evals=tmp_path / "out", **more)
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 4


@pytest.fixture
def tokenizer_dir(tmp_path):
    char_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def words_of_copy(tokenizer_dir):
    words = [sys.executable, "environments/copy_server.py", "serve"]
    words += ["--openai.base_url", "http://127.0.0.1:9/v1", "--openai.model_name", "fake"]
    return [*words, "--env.tokenizer_name", str(tokenizer_dir), "--env.use_wandb", "false"]


def test_an_invalid_setting_is_one_error_line_and_exit_status_2(tokenizer_dir):
    ended = subprocess.run(
        [*words_of_copy(tokenizer_dir), "--env.group_size", "0"],
        cwd=ROOT,
        env=ENVIRONMENT,
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "group_size" in ended.stderr and "Traceback" not in ended.stderr


def test_sigint_ends_an_environment_that_waits_for_the_api(tokenizer_dir):
    words = words_of_copy(tokenizer_dir)
    process = subprocess.Popen(
        [*words, "--env.rollout_server_url", "http://127.0.0.1:9"],
        cwd=ROOT,
        env=ENVIRONMENT,
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
