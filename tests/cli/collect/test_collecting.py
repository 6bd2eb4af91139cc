"""atropos-sft-gen and atropos-dpo-gen against the real rollout API."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from threading import Thread

import httpx
import msgspec
import pytest

from atroposlib.cli.collect import line_file
from atroposlib.cli.collect.collecting import dpo_gen, sft_gen
from atroposlib.client import RolloutClient
from atroposlib.testing.tiny import char_tokenizer
from tests.client.harness import registration
from tests.trainer.rows import scored

TOKENIZER = char_tokenizer()
PROMPT = "<|user|>2+2?<|assistant|>"


def post(api, *groups):
    body = [msgspec.to_builtins(group) for group in groups]
    httpx.post(f"{api}/scored_data_list", json=body).raise_for_status()


def answers(*texts, scores, **more):
    tokens = [TOKENIZER(PROMPT + text)["input_ids"] for text in texts]
    return scored(tokens, len(TOKENIZER(PROMPT)["input_ids"]), scores, **more)


def group(n, **more):
    return answers(f"good {n}", f"bad {n}", scores=[1.0, -1.0], **more)


def sft(api, path, tokenizer_dir, *more, tasks=2, wanted=4):
    return sft_gen(
        [str(path), "--api-url", api, "--tokenizer", tokenizer_dir]
        + ["--tasks-per-step", str(tasks), "--num-seqs-to-save", str(wanted), *more]
    )


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_exactly_the_requested_number_of_best_sequences_is_written(
    api, tmp_path, tokenizer_dir
):
    post(api, *(group(n) for n in range(8)))
    out = tmp_path / "sft.jsonl"
    assert sft(api, out, tokenizer_dir, tasks=4, wanted=6) == 0
    assert lines_of(out) == [
        {"prefix": PROMPT, "completion": f"good {n}", "score": 1.0} for n in range(6)
    ]
    status = httpx.get(f"{api}/status").json()
    assert (status["batches_acked"], status["batches_open"]) == (2, 0)
    assert list(tmp_path.iterdir()) == [out]


def test_messages_are_written_unchanged(api, tmp_path):
    chats = [
        [{"role": "user", "content": "é?"}, {"role": "assistant", "content": c}] for c in "ab"
    ]
    post(api, group(0, messages=chats), group(1), group(2, messages=chats), group(3))
    out = tmp_path / "sft.jsonl"
    assert sft(api, out, "none", "--save-messages", "--allow-negative-scores", wanted=3) == 0
    assert lines_of(out) == [
        {"messages": chats[0], "score": 1.0},
        {"messages": chats[1], "score": -1.0},
        {"messages": chats[0], "score": 1.0},
    ]


def test_sequences_of_failed_rollouts_are_left_out(api, tmp_path, tokenizer_dir):
    failed = group(0, outcomes=["env_error", "env_error"])
    half = answers("wrong", "right", scores=[9.0, 1.0], outcomes=["judge_error", "ok"])
    post(api, failed, half)
    out = tmp_path / "sft.jsonl"
    assert sft(api, out, tokenizer_dir, wanted=1) == 0
    assert [line["completion"] for line in lines_of(out)] == ["right"]


@pytest.mark.parametrize("messages", [False, True])
def test_pairs_are_written_with_the_score_of_the_better_one(
    api, tmp_path, tokenizer_dir, messages
):
    chats = [[{"role": "assistant", "content": text}] for text in ("good", "bad")]
    post(api, *(group(n, messages=chats) for n in range(2)))
    out = tmp_path / "dpo.jsonl"
    flags = ["--tasks-per-step", "2", "--num-seqs-to-save", "2", "--tokenizer", tokenizer_dir]
    more = ["--save-messages"] if messages else []
    assert dpo_gen([str(out), "--api-url", api, *flags, *more]) == 0
    expected = {"pos": chats[0], "score": 1.0, "neg": chats[1]}
    if messages:
        assert lines_of(out) == [expected] * 2
    else:
        assert lines_of(out) == [
            {"prefix": PROMPT, "pos": f"good {n}", "score": 1.0, "neg": f"bad {n}"}
            for n in range(2)
        ]


def test_an_existing_file_is_rejected_before_any_api_call(tmp_path, capsys):
    out = tmp_path / "sft.jsonl"
    out.write_text("mine\n")
    nowhere = "http://127.0.0.1:9"
    assert sft(nowhere, out, "none", "--reset") == 1
    assert "--append-to-previous" in capsys.readouterr().err
    assert out.read_text() == "mine\n"
    assert sft(nowhere, tmp_path / "new.jsonl", str(tmp_path / "no tokenizer")) == 1
    assert "--tokenizer" in capsys.readouterr().err
    assert sft(nowhere, tmp_path / "no" / "sft.jsonl", "none") == 1


def test_a_run_of_another_trainer_is_not_replaced_without_the_reset_flag(
    api, tmp_path, tokenizer_dir, capsys
):
    with RolloutClient(api) as trainer:
        trainer.register(registration())
        post(api, group(0))
        out = tmp_path / "sft.jsonl"
        assert sft(api, out, tokenizer_dir) == 1
        assert "--reset" in capsys.readouterr().err
        assert not out.exists()
        assert trainer.claim(wait_s=0).batch is not None
    assert cut_off_after(1, api, out, tokenizer_dir, "--reset") == []
    assert httpx.get(f"{api}/status").json()["queue_size"] == 0


def cut_off_after(calls, api, out, tokenizer_dir, *more):
    """Dies in the claim of that number, as a kill does: nothing is cleaned up."""
    claim, left = RolloutClient.claim, [calls]

    def dying(self, **how):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return claim(self, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RolloutClient, "claim", dying)
        assert sft(api, out, tokenizer_dir, *more) == 130
    return [line["completion"] for line in lines_of(out)]


def die(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["progress", "half a line", "ack", "the last ack"])
def test_an_interrupted_collection_resumes_without_loss_or_repetition(
    api, tmp_path, tokenizer_dir, at
):
    post(api, *(group(n) for n in range(4)))
    out = tmp_path / "sft.jsonl"
    out.write_bytes(b'{"earlier": 1}')  # without the end of a line
    first = ["--append-to-previous"]
    wanted = 2 if at == "the last ack" else 4
    with pytest.MonkeyPatch.context() as patch:
        if "ack" in at:
            patch.setattr(RolloutClient, "ack", die)
        else:
            save = line_file.LineFile._save

            def second_dies(self, progress):
                return die() if progress.lines else save(self, progress)

            patch.setattr(line_file.LineFile, "_save", second_dies)
        assert sft(api, out, tokenizer_dir, *first, wanted=wanted) == 130
    if at == "half a line":
        out.write_bytes(out.read_bytes()[:-7])
    assert sft(api, out, tokenizer_dir, "--append-to-previous", wanted=wanted) == 0
    earlier, *lines = lines_of(out)
    assert earlier == {"earlier": 1}
    assert [line["completion"] for line in lines] == [f"good {n}" for n in range(wanted)]
    assert httpx.get(f"{api}/status").json()["batches_acked"] == wanted // 2


@pytest.mark.parametrize("again", [sft_gen, dpo_gen])
def test_the_run_of_a_finished_collection_gives_way_to_the_next_as_in_the_original(
    api, tmp_path, tokenizer_dir, again
):
    post(api, *(group(n) for n in range(8)))
    assert sft(api, tmp_path / "first.jsonl", tokenizer_dir) == 0
    poster = Thread(target=post_when_registered_anew, args=(api,))
    poster.start()
    words = ["--api-url", api, "--tokenizer", tokenizer_dir, "--tasks-per-step", "2"]
    assert again([str(tmp_path / "second.jsonl"), *words, "--num-seqs-to-save", "2"]) == 0
    poster.join()
    assert len(lines_of(tmp_path / "second.jsonl")) == 2


def post_when_registered_anew(api):
    first = httpx.get(f"{api}/status").json()["run_id"]
    while (status := httpx.get(f"{api}/status").json())["run_id"] == first or (
        status["state"] == "EMPTY"
    ):
        pass
    post(api, *(group(n) for n in range(2)))


def test_a_trainer_after_a_finished_collection_is_not_replaced(api, tmp_path, tokenizer_dir):
    post(api, *(group(n) for n in range(4)))
    assert sft(api, tmp_path / "first.jsonl", tokenizer_dir) == 0
    httpx.get(f"{api}/reset_data")
    with RolloutClient(api) as trainer:
        trainer.register(registration())
        assert sft(api, tmp_path / "second.jsonl", tokenizer_dir) == 1


def test_a_finished_collection_is_followed_by_another_of_the_same_size(
    api, tmp_path, tokenizer_dir
):
    out = tmp_path / "sft.jsonl"
    for _ in range(2):
        httpx.post(f"{api}/reset_data")
        post(api, group(0), group(1))
        assert sft(api, out, tokenizer_dir, "--append-to-previous", wanted=2) == 0
    assert len(lines_of(out)) == 4


def test_a_collection_ends_when_another_trainer_takes_over_the_run(
    api, tmp_path, tokenizer_dir, capsys
):
    out = tmp_path / "sft.jsonl"
    cut_off_after(1, api, out, tokenizer_dir)
    beat = {"role": "trainer", "name": "grpo", "phase": "training", "waiting_on": None}
    httpx.post(f"{api}/heartbeat", json=beat).raise_for_status()
    assert sft(api, out, tokenizer_dir, "--append-to-previous") == 1
    assert "would lose its trainer" in capsys.readouterr().err


def test_a_file_shorter_than_its_recorded_progress_is_not_truncated(
    api, tmp_path, tokenizer_dir, capsys
):
    post(api, group(0), group(1))
    out = tmp_path / "sft.jsonl"
    cut_off_after(1, api, out, tokenizer_dir)
    out.write_text("edited\n")
    assert sft(api, out, tokenizer_dir, "--append-to-previous") == 1
    assert "fewer" in capsys.readouterr().err
    assert out.read_text() == "edited\n"


def test_the_flags_have_the_defaults_of_the_original(capsys):
    for main, max_per_group, difference, tasks in (
        (sft_gen, "--save-top-n-per-group", 0.0, 64),
        (dpo_gen, "--save-n-pairs-per-group", 0.5, 8),
    ):
        with pytest.raises(SystemExit):
            main(["--help"])
        shown = " ".join(capsys.readouterr().out.split())
        for flag, default in {
            "--api-url": "http://localhost:8000",
            "--group-size": 2,
            "--max-token-len": 2048,
            "--tokenizer": "NousResearch/DeepHermes-3-Llama-3-8B-Preview",
            max_per_group: 3,
            "--num-seqs-to-save": 100,
            "--minimum-score-diff-max-min": difference,
            "--tasks-per-step": tasks,
        }.items():
            assert flag in shown and f"({default})" in shown


@pytest.mark.slow
def test_a_killed_collection_resumes(api, tmp_path, tokenizer_dir):
    post(api, group(0), group(1))
    out = tmp_path / "sft.jsonl"
    words = [str(out), "--api-url", api, "--tokenizer", tokenizer_dir]
    words += ["--tasks-per-step", "2", "--num-seqs-to-save", "4"]
    command = [sys.executable, "-m", "atroposlib.cli.atropos", "data", "sft", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "2 of 4" in line:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    post(api, group(2), group(3))
    assert sft_gen([*words, "--append-to-previous"]) == 0
    assert [line["completion"] for line in lines_of(out)] == [f"good {n}" for n in range(4)]
    assert httpx.get(f"{api}/status").json()["batches_acked"] == 2
