from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.servers import WORKER_EXTENSION, ServerCommand, require_engine


def test_server_commands_have_the_options_of_the_publisher():
    common = {"model": "m", "host": "127.0.0.1", "port": 9, "python": "py"}
    vllm = ServerCommand(
        "vllm", lora_rank=24, gpus="2,3", tensor_parallel=2, memory_share=0.5, **common
    )
    words = " ".join(vllm.argv)
    assert "--logprobs-mode processed_logprobs" in words and WORKER_EXTENSION in words
    assert "--generation-config vllm" in words
    assert "--enable-lora --max-lora-rank 32" in words
    assert "--gpu-memory-utilization 0.5" in words and "--tensor-parallel-size 2" in words
    assert vllm.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert vllm.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    local = ServerCommand("local", **{**common, "host": "0.0.0.0"})
    assert local.argv[:3] == ("py", "-m", "atroposlib.inference")
    assert local.argv[-1] == "--allow-remote"
    sglang = " ".join(ServerCommand("sglang", memory_share=0.5, **common).argv)
    assert "--mem-fraction-static 0.5" in sglang and "--sampling-defaults openai" in sglang


@pytest.mark.parametrize(
    ("engine", "float32_head", "args", "words"),
    [
        ("vllm", None, (), ("--hf-overrides", '{"head_dtype": "float32"}')),
        ("vllm", False, (), ()),
        ("vllm", None, ("--hf-overrides", '{"rope": 1}'), ("--hf-overrides", '{"rope": 1}')),
        ("sglang", None, (), ()),
        ("sglang", True, (), ("--enable-fp32-lm-head",)),
        ("local", None, (), ()),
    ],
)
def test_logits_are_float32_where_it_costs_nothing(engine, float32_head, args, words):
    server = ServerCommand(engine, "m", "127.0.0.1", 9, float32_head=float32_head, args=args)
    options = ("--hf-overrides", "--enable-fp32-lm-head")
    first = next(
        (i for i, word in enumerate(server.argv) if word in options), len(server.argv)
    )
    assert server.argv[first : first + len(words)] == words
    assert sum(word in options for word in server.argv) == bool(words)


def test_an_engine_that_is_not_installed_is_an_error_that_says_what_to_write(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "atroposlib" or None)
    require_engine("local")
    with pytest.raises(ConfigError, match="^sglang is not installed here: .*engine=local"):
        require_engine("sglang")
