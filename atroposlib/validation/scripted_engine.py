"""Inference server of given replies for environments that are classes, and its tokenizer.

chat, text, tokens, managed session -> ServerManager -> ScriptedEngine -> the scripts of PLAYING
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.template import plain_message, render
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import (
    chat_completion_of,
    completion_of,
    completion_payload,
)
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sampling.generation import FourTuple, prompt_ids
from atroposlib.utils.tokenizers.plain import PlainTokenizer
from atroposlib.validation.sessions import RecordingSession

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

BYTES_PER_TOKEN = 4  # ratio of usual tokenizers: factor for limits of tokens
ROLES = ("system", "user", "assistant", "tool")
SPECIAL = (*(f"<|{role}|>" for role in ROLES), "<|end|>", "<|pad|>")
TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURN = re.compile(rf"<\|({'|'.join(ROLES)})\|>(.*?)<\|end\|>", re.DOTALL)


def byte_tokenizer(folder: Path) -> PlainTokenizer:
    """Tokenizer with a token per byte and per role marker: every text survives unchanged."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend: Any = Tokenizer(models.BPE({sign: i for i, sign in enumerate(signs)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return PlainTokenizer(folder)


@dataclass
class Conversation:
    """A script under way: what it replied, and the text of the prompt with its last reply."""

    session: RecordingSession
    given: list[str] = field(default_factory=list)
    text: str = ""  # empty while it waits for a reply

    async def reply(self, prompt: str, request: Mapping[str, Any]) -> Any:
        """The choice of the session."""
        self.text = ""
        (choice,) = (await self.session.chat_completion(**request)).choices
        self.given.append(choice.text)
        self.text = prompt + choice.text.rstrip()
        return choice


class ScriptedGroup:
    """Scripts of the samples of a group; each new conversation takes the next script.

    A conversation goes on where a prompt starts with an earlier prompt and its reply. A sample
    that is drawn again restarts a script. A single script replies in the order of the calls.
    """

    def __init__(self, scripts: Sequence[RecordingSession]) -> None:
        self.scripts = scripts
        self.begun: list[Conversation] = []

    async def replies(self, prompt: str, n: int, request: Mapping[str, Any]) -> list[Any]:
        alone = self.begun[:1] if len(self.scripts) == 1 else []
        going_on = [
            session
            for session in self.begun
            if session.text and prompt.startswith(session.text)
        ]
        if sessions := alone or sorted(going_on, key=lambda session: -len(session.text)):
            return [await sessions[0].reply(prompt, request)] * n
        started = [self._begin() for _ in range(min(n, len(self.scripts)))]
        choices = [await session.reply(prompt, request) for session in started]
        return [choices[i % len(choices)] for i in range(n)]

    def _begin(self) -> Conversation:
        place, times = len(self.begun) % len(self.scripts), len(self.begun)
        script = self.scripts[place]
        self.begun.append(
            Conversation(script if times < len(self.scripts) else script.again())
        )
        return self.begun[-1]

    def texts(self, script: int) -> list[str]:
        """Replies of a script's samples, all turns joined and the last turn, without repeats."""
        begun = self.begun[script :: len(self.scripts)]
        replies = [
            text for session in begun for text in ("".join(session.given), *session.given[-1:])
        ]
        return list(dict.fromkeys(text.strip() for text in replies))


PLAYING: ContextVar[ScriptedGroup | None] = ContextVar("PLAYING", default=None)


class ScriptedEngine(APIServer):
    """Server of tokens that replies as the group of the running rollout gives it."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(
            APIServerConfig(
                model_name="scripted", base_url="http://127.0.0.1:9/v1", health_check=False
            )
        )
        self.tokenizer = tokenizer

    async def _call(self, hook: Any, kwargs: dict[str, Any]) -> Any:
        """Make an attempt, with neither slots nor retries."""
        kwargs.pop("split", None)
        return await hook(**kwargs)

    async def _replies(self, prompt: str, kwargs: Mapping[str, Any]) -> list[Any]:
        group = PLAYING.get()
        if group is None:
            raise ConfigError("the model is called outside of a rollout")
        messages = kwargs.get("messages") or [
            {"role": role, "content": content} for role, content in TURN.findall(prompt)
        ]
        sent = {"messages": [plain_message(message) for message in messages]}
        request = sent if messages else {"prompt": prompt}
        tools = kwargs.get("tools") or ()
        return await group.replies(
            prompt, int(kwargs.get("n") or 1), {**request, "tools": tools}
        )

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        replies = await self._replies(render(self.tokenizer, kwargs["messages"]), kwargs)
        choices = [
            {
                "index": i,
                "finish_reason": reply.finish_reason,
                "message": {"role": "assistant", **vars(reply.message)},
            }
            for i, reply in enumerate(replies)
        ]
        return chat_completion_of(self._payload("chat.completion", choices))

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        choices = [
            {"index": i, "finish_reason": "stop", "text": reply.text, "logprobs": None}
            for i, reply in enumerate(await self._replies(str(kwargs["prompt"]), kwargs))
        ]
        return completion_of(self._payload("text_completion", choices))

    def _payload(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return completion_payload(kind, self.config.model_name, choices, 0, 0)

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> FourTuple:
        ids = prompt_ids(kwargs, self.tokenizer)
        replies = await self._replies(self.tokenizer.decode(ids), kwargs)
        end = self.tokenizer.eos_token_id
        rows = [[*self.tokenizer.encode(reply.text), end] for reply in replies]
        return ids, rows, [[-0.5] * len(row) for row in rows], ["stop"] * len(rows)


def scripted_manager(tokenizer: Any, tool_parser: str | None) -> ServerManager:
    """The servers of an environment: a single scripted engine."""
    engine = ScriptedEngine(tokenizer)
    manager = ServerManager(engine.config, tool_parser=tool_parser)
    manager.use_proxy = False
    manager.servers[:] = [engine]
    return manager
