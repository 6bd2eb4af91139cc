"""Minimal environment: it samples a real server and rewards one letter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, ScoredData

GROUP_SIZE = 4
PROMPTS = ([6, 7, 8], [6, 9, 10, 11])
REWARDED = 20


def sample_group(server: str, prompt: list[int], key: str) -> ScoredData:
    body = {"n": GROUP_SIZE, "max_tokens": 4, "logprobs": 0, "ignore_eos": True}
    body["prompt"] = {"prompt_token_ids": prompt}
    answer = httpx.post(f"{server}/generate", json=body).raise_for_status().json()
    completions: list[list[int]] = answer["token_ids"]
    logprobs = [
        [entry[0][str(token)] for entry, token in zip(entries, tokens)]
        for entries, tokens in zip(answer["logprobs"], completions)
    ]
    n = len(prompt)
    return ScoredData(
        tokens=[prompt + tokens for tokens in completions],
        masks=[[MASKED] * n + tokens for tokens in completions],
        scores=[tokens.count(REWARDED) + tokens[0] / 100 for tokens in completions],
        inference_logprobs=[[MASKED_LOGPROB] * n + row for row in logprobs],
        versions=[
            [MASKED_VERSION] * n + _versions(spans) for spans in answer["weight_versions"]
        ],
        group_id=str(prompt),
        idempotency_key=key,
        metadata={"metrics": {"length": float(len(completions[0]))}},
    )


def _versions(spans: list[dict[str, int]]) -> list[int]:
    return [span["version"] for span in spans for _ in range(span["start"], span["end"])]


@contextmanager
def running_environment(
    api: str, server: str, ahead: int = 0
) -> Iterator[list[dict[str, Any]]]:
    """Post while at most ``ahead`` groups are queued; yield the growing list of samples."""
    stop, sent = threading.Event(), []

    def run() -> None:
        while not stop.wait(0.02):
            status = httpx.get(f"{api}/status").json()
            if status["state"] == "EMPTY" or status["queue_size"] > ahead:
                continue
            groups = [
                sample_group(server, prompt, f"test-{len(sent)}-{i}")
                for i, prompt in enumerate(PROMPTS)
            ]
            body = [msgspec.to_builtins(group) for group in groups]
            httpx.post(f"{api}/scored_data_list", json=body).raise_for_status()
            sent.append({"versions": {v for g in groups for r in g.versions or [] for v in r}})

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()  # its calls are bounded; one that fails after this is an error elsewhere
