"""atropos chat MODEL_DIR: a conversation with a model, by the local engine.

Without a terminal each line of stdin is one turn of the user: echo "What is 2 + 3?" | atropos
chat MODEL_DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import GPUS, HUB, CommandParser, require
from atroposlib.utils.tokenizers.loading import local_model

if TYPE_CHECKING:
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.request import TokenEvent

PROG = "atropos chat"
Message = dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Answer every line until the end of the input."""
    options = parse_args(argv)
    require(PROG, "inference", "torch", "transformers")
    if not (Path(options.model) / "config.json").is_file():
        raise ConfigError(f"{options.model}: no model directory (one with a config.json)")
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model

    logs.configure(PROG, options.log_format, options.log_level)
    served = load_model(options.model, device=options.device)
    limits = EngineLimits(max_batch=1, kv_budget_tokens=served.max_model_len)
    engine = Engine(served, limits, seed=options.seed)
    engine.start()
    messages = [{"role": "system", "content": options.system}] if options.system else []
    try:
        for line in user_turns():
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": reply(engine, messages, options)})
    finally:
        engine.close()
    return 0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(prog=PROG, description=__doc__, variables=(HUB, GPUS))
    add = parser.add_argument
    about = "such as runs/quickstart-.../model"
    add("model", type=local_model, metavar="MODEL_DIR", help=about)
    add("--system", help="system message")
    add("--max-tokens", type=int, default=256, help="of one reply (default %(default)s)")
    add("--temperature", type=float, default=0.7, help="0: greedy (default %(default)s)")
    add("--seed", type=int, help="of the sampling (default: random)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1 (default %(default)s)")
    return parser.parse_args(argv)


def user_turns() -> Iterator[str]:
    """Turns of the user; empty lines are skipped."""
    if not sys.stdin.isatty():
        yield from (line for line in map(str.strip, sys.stdin) if line)
        return
    print("Ctrl-D ends the conversation.", file=sys.stderr)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if line:
            yield line


def reply(engine: Engine, messages: list[Message], options: argparse.Namespace) -> str:
    """Sample and print the next turn; the oldest turns are left out where they do not fit.

    Raises ConfigError if the last message alone leaves no room for an answer.
    """
    from atroposlib.inference.engine.request import GenerationRequest, SamplingParams

    context, tokenizer = engine.served.max_model_len, engine.served.tokenizer
    shown = list(messages)
    while len(ids := conversation_ids(tokenizer, shown)) >= context:
        oldest = next((m for m in shown[:-1] if m["role"] != "system"), None)
        if oldest is None:
            raise ConfigError(f"the message has {len(ids)} tokens, the model reads {context}")
        shown.remove(oldest)
    params = SamplingParams(
        max_tokens=min(options.max_tokens, context - len(ids)), temperature=options.temperature
    )

    def print_text(event: TokenEvent) -> None:
        print(logs.printable(event.text, logs.LINES), end="", flush=True)

    request = GenerationRequest(prompt_ids=ids, params=params, on_event=print_text)
    engine.submit(request)
    (output,) = request.future.result().outputs
    print(flush=True)
    return str(tokenizer.decode(output.tokens, skip_special_tokens=True))


def conversation_ids(tokenizer: Any, messages: list[Message]) -> list[int]:
    """Tokens of the conversation; without a chat template, a line ``role: content`` per turn."""
    if not tokenizer.chat_template:
        text = "\n".join(f"{m['role']}: {m['content']}" for m in messages) + "\nassistant:"
        return list(tokenizer.encode(text))
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))
