"""What tinker-atropos calls: it trains on GET /batch, and serves Tinker's samples in SGLang's shape.

It is on no index; its calls, the fields it reads and its routes are written from its sources.
"""

from __future__ import annotations

import subprocess
import sys
import time

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from atroposlib.api.server import create_app
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from tests.serving import served

pytestmark = pytest.mark.slow
WAIT_S = 120.0
REGISTRATION = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 8,
    "max_token_len": 256,
    "checkpoint_dir": "ckpt",
    "save_checkpoint_interval": 0,
    "starting_step": 0,
    "num_steps": 4,
}


def sampler(tokenizer):
    """Its server: these routes and no further ones, without a version of the weights."""
    app, replies = FastAPI(), ["4", "5", "7 or 4", "A"]
    app.state.calls = []

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/wandb_info")
    def wandb_info() -> dict[str, str]:
        return {"group": "g", "project": "p"}

    @app.post("/generate")
    def generate(body: dict) -> object:
        if "sampling_params" not in body:  # a client that asks which server this is
            raise HTTPException(422)
        params = body["sampling_params"]
        app.state.calls.append(params)
        outputs = []
        for number in range(params.get("n", 1)):
            text = replies[number % len(replies)]
            ids = tokenizer.encode(text, add_special_tokens=False)[: params["max_new_tokens"]]
            triples = [[-0.25 * (at + 1), token, text[at]] for at, token in enumerate(ids)]
            meta = {
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": len(ids),
                "finish_reason": ["stop", {"type": "length"}][number % 2],
                "output_token_logprobs": triples,
            }
            outputs.append({"text": text, "meta_info": meta})
        return outputs if len(outputs) > 1 else outputs[0]

    return app


def next_batch(api):
    """Its poll; a second apart."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        batch = httpx.get(f"{api}/batch").raise_for_status().json()["batch"]
        if batch is not None:
            return batch
        time.sleep(0.2)
    raise AssertionError("no batch")


def test_an_environment_samples_its_server_and_its_trainer_reads_the_groups(tmp_path):
    tokenizer = char_tokenizer(ASCII_ALPHABET)
    tokenizer.save_pretrained(tmp_path)
    app = sampler(tokenizer)
    with served(create_app()) as api, served(app) as server:
        registered = httpx.post(f"{api}/register", json=REGISTRATION).json()
        assert isinstance(registered["uuid"], int)
        assert httpx.get(f"{api}/batch").json() == {"batch": None}
        words = ["-m", "atroposlib.cli.atropos", "env", "run", "arithmetic", "serve"]
        flags = {
            "env.rollout_server_url": api,
            "env.tokenizer_name": tmp_path,
            "env.group_size": 4,
            "openai.server_type": "sglang",
            "openai.base_url": f"{server}/v1",
            "openai.model_name": "tinker",
        }
        given = [f"--{name}={value}" for name, value in flags.items()]
        process = subprocess.Popen([sys.executable, *words, *given], cwd=tmp_path)
        try:
            groups = next_batch(api)
        finally:
            process.kill()
            process.wait()
    assert len(groups) == 2
    for group in groups:
        for tokens, labels, logprobs in zip(
            group["tokens"], group["masks"], group["inference_logprobs"], strict=True
        ):
            trained = [at for at, logprob in enumerate(logprobs) if logprob != 1.0]
            assert trained == [at for at, label in enumerate(labels) if label != -100]
            assert [logprobs[at] for at in trained] == [
                -0.25 * (at + 1) for at in range(len(trained))
            ]
            assert tokenizer.decode([tokens[at] for at in trained]) in {
                "4",
                "5",
                "7 or 4",
                "A",
            }
        assert len(set(group["scores"])) > 1  # groups of equal scores are skipped there
        assert not group["overrides"] and group["distill_token_ids"] is None
