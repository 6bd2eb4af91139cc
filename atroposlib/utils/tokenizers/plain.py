"""Tokenizer of a model directory by the packages tokenizers and jinja2, without transformers.

It gives the tokens and prompts of transformers' ``PreTrainedTokenizerFast`` for a directory
that tokenizer.json describes in full; :func:`obstacle` names what it cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

# Settings of tokenizer_config.json that change tokens or texts beyond tokenizer.json.
CHANGES = ["add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens"]
CHANGES += ["clean_up_tokenization_spaces"]
INSTALL = "pip install 'atropos-rl[transformers]'"
SPECIAL = tuple(f"{name}_token" for name in "bos eos unk sep pad cls mask".split())
# names of the same field in templates
REASONING = ("reasoning_content", "thinking", "reasoning")


def read_json_file(file: Path) -> dict[str, Any]:
    """A JSON object; empty if the file does not exist."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def obstacle(directory: Path) -> str:
    """The reason why only transformers reads this tokenizer exactly; empty if there is none."""
    from tokenizers import Tokenizer

    config = read_json_file(directory / "tokenizer_config.json")
    for name in CHANGES:
        if config.get(name):
            return f"its tokenizer_config.json sets {name}"
    if isinstance(config.get("chat_template"), list):
        return "it has several chat templates"
    kind = str(read_json_file(directory / "config.json").get("model_type", ""))
    if "stral" in kind:  # transformers repairs the pattern of some of Mistral's
        return f"its model type is {kind}"
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    known = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    wanted = [config.get(name) for name in SPECIAL]
    for name in ("extra_special_tokens", "additional_special_tokens"):
        extra = config.get(name) or []
        wanted += extra.values() if isinstance(extra, Mapping) else extra
    lacking = [text for text in map(special_token_text, wanted) if text and text not in known]
    return f"tokenizer.json lacks the special token {lacking[0]}" if lacking else ""


def special_token_text(token: Any) -> str:
    """A special token's text, which some files wrap in an object."""
    return str(token["content"]) if isinstance(token, Mapping) else str(token or "")


class PlainTokenizer:
    """Encodes, decodes and renders chats, with the names and defaults of transformers."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self.name_or_path = str(directory)
        self.backend_tokenizer: Any = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()
        config = read_json_file(directory / "tokenizer_config.json")
        file = directory / "chat_template.jinja"
        self.chat_template: str | None = config.get("chat_template")
        if file.is_file():
            self.chat_template = file.read_text(encoding="utf-8")
        self.special_tokens_map = {
            n: special_token_text(config[n]) for n in SPECIAL if config.get(n)
        }

    def __getattr__(self, name: str) -> Any:
        """``eos_token``, ``eos_token_id`` and their kind; None if the tokenizer has none."""
        token = name.removesuffix("_id")
        if token not in SPECIAL:
            raise AttributeError(f"{name}: only tokenizers of transformers have it: {INSTALL}")
        text = self.special_tokens_map.get(token)
        return text if token == name or text is None else self.convert_tokens_to_ids(text)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def convert_tokens_to_ids(self, token: str) -> int | None:
        token_id: int | None = self.backend_tokenizer.token_to_id(token)
        return token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(
            self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        )

    def decode(
        self,
        token_ids: Sequence[int] | int,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The text, never cleaned up: the argument keeps the signature of transformers."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **options: Any,
    ) -> Any:
        """The prompt as text, or as token ids where ``tokenize``."""
        text = self._template.render(
            **{"documents": None, **self.special_tokens_map, **options},
            messages=[with_reasoning(message) for message in conversation],
            tools=None if tools is None else list(tools),
            add_generation_prompt=add_generation_prompt,
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    @cached_property
    def _template(self) -> Any:
        """The chat template in the sandbox that transformers makes for it."""
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """``{% generation %}`` marks the assistant's text; its content stays."""

            tags = {"generation"}

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def raise_exception(message: str) -> None:
            raise jinja2.TemplateError(message)

        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        sandbox.filters["tojson"] = lambda value, **options: json.dumps(
            value, **{"ensure_ascii": False, **options}
        )
        sandbox.globals["raise_exception"] = raise_exception
        sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return sandbox.from_string(self.chat_template or "")


def with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """``message`` with its reasoning under the names that templates read."""
    texts = [message[name] for name in REASONING if message.get(name) is not None]
    return (
        {"thinking": texts[0], **message, "reasoning_content": texts[0]}
        if texts
        else {**message}
    )
