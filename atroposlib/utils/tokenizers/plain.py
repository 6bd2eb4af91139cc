"""Tokenizer of a model directory by the packages tokenizers and jinja2, without transformers.

It gives the tokens and prompts of transformers' ``PreTrainedTokenizerFast`` for a directory
that tokenizer.json describes in full; :func:`obstacle` names what it cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from atroposlib.utils.tokenizers.chats import ChatTemplates, mask_of
from atroposlib.utils.tokenizers.encodings import Columns, Encodings, encodings_of

# Settings of tokenizer_config.json that change tokens or texts beyond tokenizer.json.
CHANGES = ["add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens"]
CHANGES += ["clean_up_tokenization_spaces"]
INSTALL = "pip install 'atropos-rl[transformers]'"
SPECIAL = tuple(f"{name}_token" for name in "bos eos unk sep pad cls mask".split())


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
    wanted = [config.get(name) for name in SPECIAL] + more_special_tokens(config)
    lacking = [text for text in map(special_token_text, wanted) if text and text not in known]
    return f"tokenizer.json lacks the special token {lacking[0]}" if lacking else ""


def more_special_tokens(config: Mapping[str, Any]) -> list[str]:
    """Texts of the special tokens of tokenizer_config.json that have no role."""
    texts: list[str] = []
    for name in ("extra_special_tokens", "additional_special_tokens"):
        extra = config.get(name) or []
        listed = extra.values() if isinstance(extra, Mapping) else extra
        texts += map(special_token_text, listed)
    return texts


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
        config = self._config = read_json_file(directory / "tokenizer_config.json")
        file = directory / "chat_template.jinja"
        self.chat_template: str | None = config.get("chat_template")
        if file.is_file():
            self.chat_template = file.read_text(encoding="utf-8")
        self.special_tokens_map = {
            n: special_token_text(config[n]) for n in SPECIAL if config.get(n)
        }
        self._more_special = more_special_tokens(config)

    def __getattr__(self, name: str) -> Any:
        """``eos_token``, ``eos_token_id`` and their kind; None if the tokenizer has none."""
        token = name.removesuffix("_id")
        if token not in SPECIAL:
            raise AttributeError(f"{name}: only tokenizers of transformers have it: {INSTALL}")
        text = self.special_tokens_map.get(token)
        return text if token == name or text is None else self.convert_tokens_to_ids(text)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "chats"}  # compiled templates

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    @property
    def vocab_size(self) -> int:
        """Tokens without the added tokens."""
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=False))

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    @property
    def all_special_tokens(self) -> list[str]:
        """Texts of the tokens with a role, then of the further special tokens of the files."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self._more_special]))

    @property
    def all_special_ids(self) -> list[int]:
        return [int(self.backend_tokenizer.token_to_id(t)) for t in self.all_special_tokens]

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or the ids of several; an unknown token has the unknown's id."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        token_id = self.backend_tokenizer.token_to_id(tokens)
        if token_id is None and (unknown := self.special_tokens_map.get("unk_token")):
            token_id = self.backend_tokenizer.token_to_id(unknown)
        return token_id

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> Any:
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        hidden = set(self.all_special_ids) if skip_special_tokens else set()
        return [
            self.backend_tokenizer.id_to_token(int(i)) for i in ids if int(i) not in hidden
        ]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        decoder = self.backend_tokenizer.decoder
        return str(decoder.decode(list(tokens))) if decoder else " ".join(tokens)

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text, as texts."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return list(encoded.tokens)

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> Any:
        """The ids of a text; ``options`` as for a call."""
        return self(text, add_special_tokens=add_special_tokens, **options)["input_ids"]

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True, **options: Any
    ) -> Encodings:
        """Ids and attention mask of a text, or of each of several.

        Args:
            options: padding, truncation, max_length and return_tensors of transformers.
        """
        texts = [text] if isinstance(text, str) else list(text)
        rows = [
            list(
                self.backend_tokenizer.encode(entry, add_special_tokens=add_special_tokens).ids
            )
            for entry in texts
        ]
        return self._encodings(rows, {}, not isinstance(text, str), options)

    def _encodings(
        self, rows: list[list[int]], more: Columns, is_batch: bool, options: dict[str, Any]
    ) -> Encodings:
        columns = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        pad = self.special_tokens_map.get("pad_token")
        pad_id = None if pad is None else self.backend_tokenizer.token_to_id(pad)
        return encodings_of({**columns, **more}, is_batch=is_batch, pad_id=pad_id, **options)

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> Any:
        """The text of ids, or the texts of several sequences.

        Texts are never cleaned up: the argument keeps the signature of transformers.
        """
        listed = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        ids = [listed] if isinstance(listed, int) else list(listed)
        if ids and not isinstance(ids[0], int) and hasattr(ids[0], "__len__"):
            return [self.decode(row, skip_special_tokens) for row in ids]
        return str(
            self.backend_tokenizer.decode(
                [int(i) for i in ids], skip_special_tokens=skip_special_tokens
            )
        )

    def batch_decode(
        self,
        sequences: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: Any = False,
        truncation: Any = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool | None = None,
        return_assistant_tokens_mask: bool = False,
        **options: Any,
    ) -> Any:
        """The prompt as text, or as token ids where ``tokenize``; a batch for several chats.

        With ``return_dict``, or a mask, the ids are in a mapping. Raises ValueError: an empty
        chat, or contradictory options.
        """
        is_batch = bool(conversation) and not isinstance(conversation[0], Mapping)
        template = self.chat_template if chat_template is None else chat_template
        rendered = [
            self.chats.render(
                template or "",
                chat,
                dict(self.special_tokens_map, documents=documents, **options),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                marked=return_assistant_tokens_mask,
            )
            for chat in (conversation if is_batch else [conversation])
        ]
        if not tokenize:
            texts = [text for text, _ in rendered]
            return texts if is_batch else texts[0]
        encoded = [
            self.backend_tokenizer.encode(text, add_special_tokens=False)
            for text, _ in rendered
        ]
        masks = [mask_of(encoding, spans) for encoding, (_, spans) in zip(encoded, rendered)]
        more = {"assistant_masks": masks} if return_assistant_tokens_mask else {}
        forms = {"padding": padding, "truncation": truncation, "max_length": max_length}
        encodings = self._encodings(
            [list(encoding.ids) for encoding in encoded],
            more,
            is_batch,
            {**forms, "return_tensors": return_tensors},
        )
        as_mapping = return_assistant_tokens_mask if return_dict is None else return_dict
        return encodings if as_mapping else encodings["input_ids"]

    @cached_property
    def chats(self) -> ChatTemplates:
        """The compiled chat templates."""
        return ChatTemplates()

    def save_pretrained(self, save_directory: str | Path, **unused: Any) -> tuple[str, ...]:
        """Write the tokenizer's files; return their paths."""
        target = Path(save_directory)
        target.mkdir(parents=True, exist_ok=True)
        config = {**self._config, **self.special_tokens_map}
        config.pop("chat_template", None)
        texts = {
            "tokenizer.json": self.backend_tokenizer.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, indent=2),
        }
        if self.chat_template is not None:
            texts["chat_template.jinja"] = self.chat_template
        for name, text in texts.items():
            (target / name).write_text(text, encoding="utf-8")
        return tuple(str(target / name) for name in texts)
