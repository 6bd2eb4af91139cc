"""Every environment as a user starts it: the local inference server, a small random model, and
for ``serve`` the rollout API with somebody who takes batches. Marked slow: minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atroposlib.client import RolloutClient
from atroposlib.testing.tiny import ASCII_ALPHABET, write_tiny_model
from atroposlib.wire import Registration

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("GSM8K_DIR", ROOT.parent / "shared" / "data"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
WAIT_S = 600.0
GROUP = 2

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TOOLS = json.dumps([{"name": "weather", "parameters": {"type": "object", "properties": {}}}])
CHAT = [
    {"from": "system", "value": "Tools are there."},
    {"from": "human", "value": "Weather in Rome?"},
    {"from": "gpt", "value": CALL},
]
SCENE = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]
SUMS = [{"question": f"What is {i} + 1?", "answer": f"Add.\n#### {i + 1}"} for i in range(8)]
DEEPMATH = [{"question": "What is 1 + 1?", "final_answer": "2", "difficulty": 1.0}] * 4
LIBRARY = sorted(path.stem for path in ROOT.glob("environments/library/[!_]*.py"))
FEW = {"env.eval_problems": "2"}


@dataclass(frozen=True)
class Case:
    """A script, its rows by file (one file: the file itself is the data), and more flags."""

    script: str
    files: dict[str, list[dict]]
    flags: dict[str, str] = field(default_factory=dict)
    metric: str = "percent_correct"  # one that evaluate writes


CASES = {
    "gsm8k": Case("gsm8k_server.py", {"train.jsonl": SUMS, "test.jsonl": SUMS}, FEW),
    "teacher": Case(
        "gsm8k_server_teacher_distill.py",
        {"train.jsonl": SUMS, "test.jsonl": SUMS},
        {"env.teacher_top_k": "2", **FEW},
    ),
    "math_zero": Case(
        "math_server_zero.py",
        {"train.jsonl": DEEPMATH, "aime24.jsonl": [{"problem": "1?", "answer": "1"}] * 2},
        {"env.start_tok_length": "600", "env.eval_sets": '["aime24"]'},
        "aime24_percent_correct",
    ),
    "multiturn_tools": Case(
        "tool_use_multiturn_server.py",
        {"rows.jsonl": [{"conversations": CHAT, "tools": TOOLS}] * 4},
        {"env.max_turn_tokens": "32", "env.max_token_length": "1200"},
        "turns_right",
    ),
    "turnlevel_tools": Case(
        "tool_use_turnlevel_advantage_server.py",
        {"rows.jsonl": [{"conversations": CHAT, "tools": TOOLS}] * 4},
        {"env.max_turn_tokens": "32", "env.max_token_length": "1200"},
        "turns_right",
    ),
    "rlaif": Case(
        "rlaif_server.py",
        {"rows.jsonl": [{"conversation": SCENE, "model": "m"}] * 8},
        # Too few tokens for a random model to finish a verdict.
        {"env.max_reply_tokens": "2", "env.judge_max_tokens": "8"},
        "questions",
    ),
    "gymnasium": Case(
        "gymnasium_server.py",
        {},
        {"env.max_tokens": "16", "env.eval_items": "2"},
        "illegal",
    ),
    "mcqa": Case(
        "mcqa_thinking_env.py",
        {"rows.jsonl": [{"prompt": "Sky?", "options": ["red", "blue"], "answer": 1}] * 8},
        FEW,
    ),
    "tool_calling": Case(
        "tool_calling_server.py", {"rows.jsonl": [{"conversations": CHAT}] * 8}, FEW
    ),
    "sft": Case(
        "sft_loader_server.py",
        {"rows.jsonl": [{"text": "two words"}] * 4},
        {"env.group_size": "1"},
        "trained_share",
    ),
}


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


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    return write_tiny_model(directory, max_positions=4096, alphabet=ASCII_ALPHABET)


@pytest.fixture(scope="module")
def inference(model):
    options = ("--model", str(model), "--served-model-name", "tiny", "--threads", "2")
    with started("atroposlib.inference", *options) as url:
        yield url


@pytest.fixture
def command(model, inference, tmp_path):
    """The words that start a case in a mode, with its rows written as its data set."""

    def words(case, mode, **settings):
        flags = {
            "openai.base_url": f"{inference}/v1",
            "openai.model_name": "tiny",
            "env.tokenizer_name": str(model),
            "env.use_wandb": "false",
            "env.ensure_scores_are_not_same": "false",
            "env.group_size": str(GROUP),
            "env.max_token_length": "640",
            **case.flags,
            **settings,
        }
        if "env.teacher_top_k" in flags:
            flags |= {
                "teacher.base_url": f"{inference}/v1",
                "teacher.model_name": "tiny",
                "teacher.tokenizer_name": str(model),
            }
        for name, rows in case.files.items():
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
            single = len(case.files) == 1
            flags.setdefault("env.dataset_path", str(tmp_path / name if single else tmp_path))
        given = [f"--{name}={value}" for name, value in flags.items()]
        return [sys.executable, f"environments/{case.script}", mode, *given]

    return words


def finished(words):
    ended = subprocess.run(
        words, cwd=ROOT, env=ENVIRONMENT, timeout=WAIT_S, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stderr


@pytest.mark.parametrize("name", LIBRARY)
def test_an_environment_of_the_library_runs_in_process_mode(name, command, tmp_path):
    out = tmp_path / "groups.jsonl"
    flags = {"env.total_steps": "1", "env.max_tokens": "8", "env.max_token_length": "4000"}
    if name == "code_execution":
        flags["env.sandbox"] = "none"  # bubblewrap has tests of its own
    case = Case(f"library/{name}.py", {}, flags)
    log = finished(command(case, "process", **{"env.data_path_to_save_groups": str(out)}))
    (group,) = map(json.loads, out.read_text().splitlines())
    assert len(group["scores"]) == GROUP, log
    assert group["metadata"]["env"] == name
    assert out.with_suffix(".html").is_file()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_process_mode_writes_token_exact_groups(case, command, tmp_path):
    out = tmp_path / "groups.jsonl"
    settings = {"env.total_steps": "2", "env.data_path_to_save_groups": str(out)}
    log = finished(command(case, "process", **settings))
    groups = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(groups) == 2, log
    for group in groups:
        for tokens, mask in zip(group["tokens"], group["masks"]):
            assert len(tokens) == len(mask) <= 1200
            assert all(m in (-100, t) for t, m in zip(tokens, mask))
        if case is CASES["teacher"]:
            assert all(len(ids) <= 3 for row in group["distill_token_ids"] for ids in row)
            lengths = [len(row) for row in group["distill_logprobs"]]
            assert lengths == [len(row) for row in group["tokens"]]
        if case is not CASES["sft"]:
            assert len(group["tokens"]) == GROUP
            for mask, logprobs in zip(group["masks"], group["inference_logprobs"]):
                assert all((m == -100) == (lp == 1.0) for m, lp in zip(mask, logprobs))
    assert out.with_suffix(".html").is_file()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_evaluate_mode_writes_its_metrics_and_samples(case, command, tmp_path):
    finished(
        command(case, "evaluate", **{"env.data_dir_to_save_evals": str(tmp_path / "out")})
    )
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())["results"]["all"]
    assert case.metric in results
    assert (tmp_path / "out" / "evaluate_config.yaml").is_file()


@pytest.mark.parametrize("name", ["teacher", "turnlevel_tools", "sft"])
def test_serve_mode_sends_groups_to_a_trainer_and_ends_on_a_signal(name, command, tmp_path):
    """Of each kind of group on the wire one; ``process`` makes those of all environments."""
    taken = take_batches(command(CASES[name], "serve"), tmp_path)
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
@pytest.mark.parametrize("mode", ["process", "evaluate", "serve"])
def test_gsm8k_runs_on_the_real_problems(mode, command, tmp_path):
    case = Case("gsm8k_server.py", {}, {"env.dataset_path": str(SHARED)})
    out = tmp_path / "out"
    if mode == "serve":
        assert len(take_batches(command(case, mode), tmp_path)) == 2
    elif mode == "process":
        settings = {"env.total_steps": "2", "env.data_path_to_save_groups": f"{out}.jsonl"}
        finished(command(case, mode, **settings))
        assert len(Path(f"{out}.jsonl").read_text().splitlines()) == 2
    else:
        settings = {"env.eval_problems": "4", "env.data_dir_to_save_evals": str(out)}
        finished(command(case, mode, **settings))
        assert len((out / "samples.jsonl").read_text().splitlines()) == 4
