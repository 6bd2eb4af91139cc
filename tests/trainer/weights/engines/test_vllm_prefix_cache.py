"""Canary of the prefix cache with a real vLLM, started with the Python of ``ATROPOS_VLLM_PYTHON``."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from contextlib import closing

import httpx
import pytest

from atroposlib.errors import StaleWeights
from atroposlib.testing.tiny import write_tiny_model
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.weights import make_publisher, verify
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.canary import canary_prefixes, fill_prefix_caches
from example_trainer.weights.engines import connect_engine
from tests.trainer.weights.support.fleets import change, state

PYTHON = os.environ.get("ATROPOS_VLLM_PYTHON")
STARTS_WITHIN_S = 300.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="ATROPOS_VLLM_PYTHON names no Python with vLLM"),
]
# Longer than a block of the cache, of 128 tokens in vLLM's CPU build.
ROWS = [[random.Random(seed).randrange(6, 40) for _ in range(400)] for seed in range(2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("vllm") / "tiny", max_positions=512)


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    """A vLLM with prefix caching, as a child process."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    settings |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "512", "--max-num-seqs", "8", "--enforce-eager"]
    command += ["--enable-prefix-caching", "--logprobs-mode", "processed_logprobs"]
    path = tmp_path_factory.mktemp("vllm-log") / "server.log"
    with path.open("w") as log:
        environment = {**os.environ, **settings}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_ready(address, server, path)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def _wait_until_ready(address, server, log):
    end = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{address}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"vLLM did not start:\n{log.read_text()[-3000:]}")


def hits(url):
    """Prompt tokens that vLLM took from its prefix cache so far."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.mark.parametrize("resets", [True, False], ids=["reset", "not reset"])
def test_a_prefix_cache_of_vllm_is_found_stale_unless_it_is_reset(
    url, model, config, monkeypatch, resets
):
    engine = connect_engine(url, "auto", timeout_s=60, wait_s=0, on_wait=lambda what: None)
    cfg = config(
        model_name=str(model), weight_publisher="disk", seq_len=512, publish_timeout_s=60
    )
    policy = loading.load_policy(cfg, Ranks.single())
    agreement, prefixes = Agreement.of("float32"), canary_prefixes(ROWS)
    with closing(engine), closing(make_publisher(cfg, [engine], None)) as publisher:
        publisher.publish(policy, state(1))
        change(policy, seed=1 + resets)
        fill_prefix_caches(policy, publisher.fleet, prefixes)
        if not resets:
            monkeypatch.setattr(engine, "pause", lambda resume_after_s=None: None)
            monkeypatch.setattr(engine, "_require_loaded", engine.label)
        before = hits(url)
        publisher.publish(policy, state(2))
        check = (policy, publisher, ROWS, 2, agreement)
        if resets:
            found = verify.check_published(*check, prefixes)
            assert found["prefix_cache_tokens"] > 0
            assert found["prefix_cache_mismatch_max"] < 1e-3
            return
        assert verify.check_published(*check)["publish_mismatch_max"] < 1e-3
        with pytest.raises(StaleWeights, match="prefix cache was not reset"):
            verify.check_published(*check, prefixes)
        assert hits(url) > before
