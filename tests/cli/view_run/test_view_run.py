"""view-run and view-run-multimodal: options, refusals, and the page over a real API."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from contextlib import contextmanager

import httpx
import msgspec
import pytest

from atroposlib.cli import view_run, view_run_multimodal
from atroposlib.client import RolloutClient
from atroposlib.testing.tiny import char_tokenizer
from tests.client.harness import registration
from tests.trainer.rows import scored

TOKENIZER = char_tokenizer()
PROMPT = "<|user|>2+2?<|assistant|>"


@contextmanager
def page_of(*words, images=False):
    """The command as a separate process, because Gradio leaves event loops open."""
    start = f"import sys; from atroposlib.cli.view_run import main; main(images={images})"
    command = [sys.executable, "-c", start, "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            with httpx.Client(base_url=line.split()[-1], timeout=600) as http:
                yield http
        finally:
            process.terminate()


def grab(page, session="s"):
    """The fields that the button Grab Next Batch fills, by the API of Gradio."""
    path = "/gradio_api/call/get_batch"
    event = page.post(path, json={"data": [], "session_hash": session}).json()["event_id"]
    reply = page.get(f"{path}/{event}").text
    assert "event: complete" in reply, reply
    return json.loads(reply.rpartition("data: ")[2])


def group_of(n):
    tokens = [TOKENIZER(PROMPT + text)["input_ids"] for text in (f"good {n}", f"bad {n}")]
    return scored(tokens, len(TOKENIZER(PROMPT)["input_ids"]), [1.0, -1.0])


def post(api, n):
    body = msgspec.to_builtins(group_of(n))
    httpx.post(f"{api}/scored_data", json=body).raise_for_status()


def status_of(api):
    status = httpx.get(f"{api}/status").json()
    assert (status["state"], status["batches_open"]) == ("STARTED", 1)
    # Ages, the time left of a lease, and figures that are read every few seconds.
    timed = {"ages_s", "participants", "open_batches", "tokens"}
    return {name: status[name] for name in status.keys() - timed}


def test_the_flags_and_defaults_are_those_of_the_original():
    plain = view_run.build_parser("view-run", images=False).parse_args([])
    assert (plain.port, plain.group_size, plain.max_token_len) == (9001, 2, 2048)
    assert plain.tokenizer == "NousResearch/DeepHermes-3-Llama-3-8B-Preview"
    with_images = view_run.build_parser("view-run-multimodal", images=True).parse_args([])
    assert with_images.tokenizer == "Qwen/Qwen2-VL-2B-Instruct"


def test_a_page_for_other_machines_needs_tokens(monkeypatch, capsys):
    monkeypatch.setattr(view_run, "require", lambda *needed: None)
    assert view_run.main(["--host", "0.0.0.0"]) == 1
    assert "ssh -L 9001:127.0.0.1:9001" in capsys.readouterr().err


@pytest.mark.parametrize("command", [view_run.main, view_run_multimodal.main])
def test_an_unknown_tokenizer_ends_with_one_line(command, tmp_path, capsys):
    pytest.importorskip("gradio")
    words = ["--port", "0", "--tokenizer", str(tmp_path / "absent")]
    assert command(words) == 1
    assert "--tokenizer" in capsys.readouterr().err


@pytest.mark.slow
def test_the_button_shows_groups_in_their_order_and_leaves_the_run_alone(api, tokenizer_dir):
    pytest.importorskip("gradio")
    with page_of("--tokenizer", tokenizer_dir, "--api-url", api) as page:
        kinds = {one["type"] for one in page.get("/config").json()["components"]}
        assert {"textbox", "highlightedtext", "number"} <= kinds
        assert not kinds & {"markdown", "chatbot", "html", "dataframe"}  # would fetch images
        for n in range(2):
            post(api, n)
            _, title, prompt, score, output, *_ = grab(page)
            assert (title, prompt) == (f"{n + 1}: 2 of 2 samples", PROMPT)
            assert (score, output) == (1.0, f"good {n}")
    with RolloutClient(api, give_up_after_s=0) as client:
        assert client.status().state == "EMPTY"


@pytest.mark.slow
def test_watching_a_run_in_training_changes_nothing_of_it(api, tokenizer_dir):
    pytest.importorskip("gradio")
    with RolloutClient(api, give_up_after_s=0) as trainer:
        trainer.register(registration(batch_size=4))
        for n in range(5):
            post(api, n)
        held = trainer.claim(wait_s=0)
        before = status_of(api)
        words = ["--tokenizer", tokenizer_dir, "--api-url", api]
        with page_of(*words) as plain, page_of(*words, images=True) as with_images:
            assert grab(plain)[4] == grab(with_images)[5] == "good 4"
            assert status_of(api) == before
        trainer.ack(held)
        assert [len(held.batch), len(trainer.claim(wait_s=0).batch)] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("images", [False, True])
def test_an_archive_is_shown_without_an_api(tokenizer_dir, tmp_path, images):
    pytest.importorskip("gradio")
    file = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (2, 2)).save(file, "PNG")
    picture = {"images": [base64.b64encode(file.getvalue()).decode()]}
    lines = [msgspec.json.encode(msgspec.to_builtins(group_of(n)) | picture) for n in range(2)]
    (tmp_path / "groups.jsonl").write_bytes(b"\n".join(lines))
    words = ["--archive", str(tmp_path), "--tokenizer", tokenizer_dir]
    with page_of(*words, images=images) as page:
        for n in range(2):
            status, title, *rest = grab(page)
            assert (status, title) == ("archive: 2 groups", f"{n + 1}: 2 of 2 samples")
            if images:
                [shown, *rest] = rest
                assert len(shown) == 1
            assert rest[:3] == [PROMPT, 1.0, f"good {n}"]


def test_nothing_is_taken_out_of_an_archive(tmp_path, capsys):
    pytest.importorskip("gradio")
    assert view_run.main(["--archive", str(tmp_path), "--take", "--port", "0"]) == 1
    assert "nothing is taken" in capsys.readouterr().err


@pytest.mark.slow
def test_take_is_refused_while_a_run_exists_and_acks_what_it_takes(api, tokenizer_dir):
    pytest.importorskip("gradio")
    words = ["--tokenizer", tokenizer_dir, "--api-url", api, "--take"]
    with RolloutClient(api, give_up_after_s=0) as client:
        client.register(registration())
        assert view_run.main([*words, "--port", "0"]) == 1
        with page_of(*words, "--reset") as page:
            for n in range(8):
                post(api, n)
            outputs = [grab(page)[4] for _ in range(8)]
        assert outputs == [f"good {n}" for n in range(8)]
        assert (client.status().batches_acked, client.status().batches_open) == (1, 0)
