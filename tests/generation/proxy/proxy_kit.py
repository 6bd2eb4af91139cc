"""For tests of the proxy: a tokenizer with tool calls in it, a scripted server, a tiny model.

The tokenizer has whole tool calls as single tokens, so a random model makes real calls, and
``th`` next to ``t`` and ``h``, so it samples texts in ways the tokenizer never would.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.proxy.in_process import RunningProxy, serving_proxy
from atroposlib.generation.proxy.main import create_app

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|pad|>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PAIRS = ("th", "he", "in", "er")
TEMPLATE = (
    "{% if tools %}<|system|>tools:{% for t in tools %} {{ t['function']['name'] }}{% endfor %}"
    "<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}


def tool_call(a: int, b: int, name: str = "add") -> str:
    """What a hermes model writes to call the tool."""
    call = json.dumps({"name": name, "arguments": {"a": a, "b": b}})
    return f"<tool_call>\n{call}\n</tool_call>"


CALLS = tuple(tool_call(a, 7 * a) for a in range(6))
BROKEN = ("<tool_call>\n{broken", '<tool_call>\n{"name": "add"}', "</tool_call>")


def tool_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = (*ROLES, *CALLS, *BROKEN, *PAIRS, *CHARACTERS)
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|pad|>")
    )
    longer = sorted((*CALLS, *BROKEN, *PAIRS), key=len, reverse=True)
    pattern = "|".join(map(re.escape, longer)) + r"|[\s\S]"
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(ROLES[:4]),
        chat_template=TEMPLATE,
    )


def write_tool_model(directory: Path, seed: int = 0) -> Path:
    """A random one-layer Llama over :func:`tool_tokenizer`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tool_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


class ScriptedServer:
    """A server of the original's interface that returns ``reply(prompt text, i)``."""

    def __init__(self, reply: Callable[[str, int], str]) -> None:
        self.config = APIServerConfig(
            base_url="http://scripted/v1", server_type="vllm", model_name="scripted"
        )
        self.tokenizer = tool_tokenizer()
        self.reply = reply
        self.asked: list[dict[str, Any]] = []
        self.before: Callable[[], Any] | None = None  # awaited before each answer

    async def tokens_and_logprobs_completion(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[str]]:
        self.asked.append(kwargs)
        if self.before is not None:
            await self.before()
        prompt = list(kwargs["input_ids"])
        text = self.tokenizer.decode(prompt)
        outputs = [
            self.tokenizer.encode(self.reply(text, i) + "<|end|>", add_special_tokens=False)
            for i in range(kwargs.get("n") or 1)
        ]
        limit = kwargs["max_tokens"]
        return (
            prompt,
            [tokens[:limit] for tokens in outputs],
            [[-(1 + t % 7) / 8 for t in tokens[:limit]] for tokens in outputs],
            ["stop" if len(tokens) <= limit else "length" for tokens in outputs],
        )


class Manager:
    """As much of a ``ServerManager`` as the proxy needs."""

    def __init__(self, *servers: Any) -> None:
        self.servers = list(servers)


@asynccontextmanager
async def scripted_proxy(
    reply: Callable[[str, int], str], **options: Any
) -> AsyncIterator[tuple[RunningProxy, ScriptedServer]]:
    """A proxy on a real socket over a :class:`ScriptedServer`."""
    server = ScriptedServer(reply)
    async with serving_proxy(Manager(server), server.tokenizer, "m", **options) as proxy:
        yield proxy, server


class AppProxy:
    """An app over one scripted server, called in process."""

    def __init__(self, reply=lambda prompt, i: f"word {i}", **options) -> None:
        self.server = ScriptedServer(reply)
        self.manager = Manager(self.server)
        self.app = create_app(self.manager, self.server.tokenizer, "m", **options)
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://proxy")

    async def ask(self, method: str, path: str, body=None, status: int = 200):
        reply = await self.http.request(method, path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def open(self, **settings) -> str:
        return (await self.ask("POST", "/sessions/create", settings))["uuid"]


def openai_client(session, **options) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, **options)


def adder(prompt: str, i: int) -> str:
    """Calls the tool once, then returns the sum."""
    if "<|tool|>" in prompt:
        return "it is " + prompt.rpartition("<|tool|>")[2].partition("<|end|>")[0]
    return "let me see " + tool_call(2, 3)
