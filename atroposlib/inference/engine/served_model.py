"""Loading of the served model and its three forward passes: prefill, decode, score.

P prompts, T tokens of the longest prompt, B running rows, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import MAX_TEXT_CHARS, ConfigError, RolloutError, boundary
from atroposlib.inference.engine.kv_cache import DecodeWrite, PrefillWrite, SlotCache
from atroposlib.inference.engine.sampling import scale
from atroposlib.utils.models.causal_lm import LogitTransform, decoder, measured_transform
from atroposlib.utils.models.low_precision import autocast, wide_product, widen_residual
from atroposlib.utils.models.routers import Router, routers_of
from atroposlib.utils.models.vision import (
    PictureInputs,
    PictureReader,
    language_model_class,
    picture_reader,
)

WIDTH_STEP = 16  # decode views grow in steps, which keeps the mask aligned for kernels
SCORE_CHUNK_LOGITS = 1 << 25  # logits held at once while scoring: 128 MiB in fp32
# What the largest of a model's logits may differ from its head's products, transformed.
HEAD_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}


@dataclass(slots=True)
class ServedModel:
    """A causal language model with its tokenizer and the limits that follow from it."""

    model: Any  # PreTrainedModel; transformers leaves its attributes untyped
    tokenizer: Any
    name: str
    path: str
    eos_ids: frozenset[int]
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    transform: LogitTransform  # transform from the output head's products to logits
    routers: tuple[Router, ...] = ()  # routers of a mixture of experts
    reader: PictureReader | None = None  # None: the model reads text only
    _head: Tensor | None = None  # (V, D) of the weights as they are; None: not copied yet

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a position of a sequence takes in the cache."""
        config = self.model.config.get_text_config()
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return int(2 * self.num_layers * kv_heads * head_dim * self.dtype.itemsize)

    @property
    def num_layers(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    @torch.inference_mode()
    def prefill(
        self, ids: Tensor, lengths: Tensor, cache: SlotCache, rows: Tensor, source: Tensor
    ) -> Tensor:
        """Forward whole prompts, ids (P, T), into the cache; logits after each, (P, V).

        Cache row ``rows[i]`` receives prompt ``source[i]``. Padding is on the right:
        with causal attention no real token ever sees it.
        """
        cache.follow(PrefillWrite(rows, source))
        hidden = self._hidden_states(ids, None, self._positions(ids.shape[1]), cache)
        return self._logits(hidden[torch.arange(len(ids), device=self.device), lengths - 1])

    @torch.inference_mode()
    def prefill_pictures(
        self,
        ids: Tensor,
        pictures: PictureInputs,
        cache: SlotCache,
        rows: Tensor,
    ) -> Tensor:
        """Forward a prompt with its pictures, ids (1, T), into ``rows``; logits (1, V)."""
        cache.follow(PrefillWrite(rows, torch.zeros_like(rows)))
        positions = pictures.positions_up_to(ids.shape[1])[:, None].to(self.device)
        tensors = {name: value.to(self.device) for name, value in pictures.tensors.items()}
        with autocast(self.device, self.dtype):
            output = self.model.base_model(
                input_ids=ids,
                position_ids=positions if len(positions) > 1 else positions[0],
                past_key_values=cache,
                use_cache=True,
                **tensors,
            )
        return self._logits(output.last_hidden_state[:, -1])

    @torch.inference_mode()
    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: SlotCache,
        width: int,
        shifts: Tensor | None = None,
    ) -> Tensor:
        """Forward a token for each of B rows. tokens, positions: (B,) -> logits (B, V).

        ``shifts`` (B,): what pictures add to the positions of the rotation.
        """
        width = min(-(-width // WIDTH_STEP) * WIDTH_STEP, cache.num_columns)
        rows = torch.arange(len(tokens), device=self.device)
        cache.follow(DecodeWrite(rows * cache.num_columns + positions, len(tokens), width))
        mask = self._decode_mask(positions, width)
        rotated = positions if shifts is None else positions + shifts
        hidden = self._hidden_states(tokens[:, None], mask, rotated[:, None], cache)
        return self._logits(hidden[:, 0])

    @torch.inference_mode()
    def score(
        self, prompts: list[list[int]], temperatures: list[float], top: list[int]
    ) -> list[list[dict[int, float] | None]]:
        """Teacher-forced logprobs of prompts: per position the actual token, then the top."""
        ids, _ = self.padded_prompts(prompts)
        hidden = self._hidden_states(ids, None, self._positions(ids.shape[1]), None)
        scored: list[list[dict[int, float] | None]] = []
        for prompt, states, temperature, k in zip(prompts, hidden, temperatures, top):
            entries: list[dict[int, float] | None] = [None]
            chunk = max(1, SCORE_CHUNK_LOGITS // self.vocab_size)
            for start in range(0, len(prompt) - 1, chunk):
                stop = min(start + chunk, len(prompt) - 1)
                target = torch.tensor(prompt[start + 1 : stop + 1], device=self.device)
                entries += self._score_chunk(states[start:stop], target, temperature, k)
            scored.append(entries)
        return scored

    def _score_chunk(
        self, states: Tensor, target: Tensor, temperature: float, k: int
    ) -> list[dict[int, float] | None]:
        logits = self._logits(states)
        divisor = torch.full((len(logits),), temperature, device=self.device)
        logprobs = scale(logits, divisor).log_softmax(dim=-1)  # (T, V)
        actual = logprobs.gather(1, target[:, None]).squeeze(1).tolist()
        values, ids = logprobs.topk(min(k, logprobs.shape[1]), dim=-1)
        return [
            {token: logprob} | {i: v for i, v in zip(row_ids, row_values) if i != token}
            for token, logprob, row_ids, row_values in zip(
                target.tolist(), actual, ids.tolist(), values.tolist()
            )
        ]

    def _hidden_states(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: SlotCache | None
    ) -> Tensor:
        with autocast(self.device, self.dtype):
            output = decoder(self.model)(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        products = wide_product(hidden.to(self.dtype), self._head_weight().t())
        bias = self.model.get_output_embeddings().bias
        logits: Tensor = self.transform(products if bias is None else products + bias)
        return logits

    def _head_weight(self) -> Tensor:
        """(V, D) of the output head; on a CPU in float32, which every product would make anew."""
        if self._head is None:
            weight = self.model.get_output_embeddings().weight
            self._head = weight if weight.is_cuda else weight.float()
        return self._head

    def weights_changed(self) -> None:
        """Drop what was computed from the weights."""
        self._head = None

    def padded_prompts(self, prompts: Iterable[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids (P, T), zeros on the right, and lengths (P,)."""
        rows = [list(prompt) for prompt in prompts]
        longest = max(len(row) for row in rows)
        ids = torch.tensor([r + [0] * (longest - len(r)) for r in rows], device=self.device)
        return ids, torch.tensor([len(row) for row in rows], device=self.device)

    def _positions(self, length: int) -> Tensor:
        return torch.arange(length, device=self.device)[None]

    def _decode_mask(self, positions: Tensor, width: int) -> Tensor:
        """(B, 1, 1, width): 0 where a row may look, -inf behind its own position."""
        columns = torch.arange(width, device=self.device)
        hidden = columns > positions[:, None]
        mask = torch.zeros(len(positions), width, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)[:, None, None]


def load_model(
    path: str,
    *,
    name: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    max_model_len: int | None = None,
) -> ServedModel:
    """Load a causal language model and its tokenizer from a directory or hub name.

    Raises ConfigError if there is none, or it uses layers that this engine does not serve.
    """
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    path = os.path.abspath(path) if os.path.isdir(path) else path
    where = torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    )
    precision = _dtype(dtype, where)
    config = _part(path, "config.json", AutoConfig.from_pretrained)
    limit = _context_limit(config.get_text_config(), max_model_len)
    load = partial(language_model_class(config).from_pretrained, dtype=precision)
    model: Any = _part(path, "weights", load)
    tokenizer: Any = _part(path, "tokenizer", AutoTokenizer.from_pretrained)
    # clears settings the tokenizer file may carry: doing so later, while another thread
    # decodes, raises "Already borrowed"
    tokenizer.encode("")
    model.to(where).eval().requires_grad_(False)
    widen_residual(model.get_input_embeddings(), precision)
    return ServedModel(
        model=model,
        tokenizer=tokenizer,
        name=name or Path(path).name,
        path=path,
        eos_ids=_eos_ids(model, tokenizer),
        max_model_len=limit,
        device=where,
        dtype=precision,
        transform=_transform(model, where),
        routers=tuple(routers_of(model, torch.arange(1, 7, device=where)[None])),
        reader=_part(path, "processor", lambda source: picture_reader(source, model)),
    )


def _part(path: str, part: str, load: Callable[[str], Any]) -> Any:
    """A part of the model. Raises ConfigError with the reason on a line: it cannot be loaded.

    Files of a model are data of the user's; transformers and safetensors raise errors of many
    types for files that are missing, cut or of an unknown kind.
    """
    try:
        with boundary(path, None, part):
            return load(path)
    except RolloutError as error:
        reason = " ".join(str(error.__cause__).split())[:MAX_TEXT_CHARS]
        raise ConfigError(f"model {path} cannot be loaded: {part}: {reason}") from error


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    names = {
        "auto": torch.bfloat16 if device.type == "cuda" else torch.float32,
        "float32": torch.float32,
        "fp32": torch.float32,
        "bfloat16": torch.bfloat16,
        "bf16": torch.bfloat16,
    }
    if dtype not in names:
        raise ConfigError(f"dtype is one of {', '.join(names)}, not {dtype!r}")
    return names[dtype]


def _context_limit(config: Any, wanted: int | None) -> int:
    """Tokens a sequence may have: asked, at most what the positions and windows allow.

    A sliding-window layer equals full attention up to its window; beyond it this cache would
    give wrong logprobs.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    unserved = kinds - {"full_attention", "sliding_attention"}
    if unserved:
        raise ConfigError(f"layers of kind {', '.join(sorted(unserved))} cannot be served")
    limits = [config.max_position_embeddings]
    window = getattr(config, "sliding_window", None)
    explicit = getattr(config, "layer_types", None)
    if window and (explicit is None or "sliding_attention" in kinds):
        limits.append(window)
    rope = getattr(config, "rope_parameters", None) or {}
    # nested per kind of layer without a rope_type
    for scaling in [rope] if "rope_type" in rope else rope.values():
        if scaling.get("rope_type") in ("dynamic", "longrope"):
            # past this length a long row would change the positions of its whole batch
            limits.append(scaling.get("original_max_position_embeddings") or limits[0])
    allowed = int(min(limits))
    if wanted is not None and wanted > allowed:
        raise ConfigError(f"--max-model-len {wanted} is more than the model's {allowed}")
    return wanted or allowed


@torch.inference_mode()
def _transform(model: Any, device: torch.device) -> LogitTransform:
    """Transform after the output head; ConfigError if it is more than a scale and a cap."""
    tokens = torch.arange(1, 7, device=device)[None]
    transform = measured_transform(model, tokens, HEAD_TOLERANCE[model.dtype])
    if transform is None:
        raise ConfigError(
            f"{type(model).__name__} changes its logits after the output head in another way"
            " than by a scale and a cap that its configuration names; it cannot be served"
        )
    return transform


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a turn: generation config, model config and tokenizer."""
    ids: set[int] = set()
    for value in (
        model.generation_config.eos_token_id,
        model.config.get_text_config().eos_token_id,
        tokenizer.eos_token_id,
    ):
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(int(v) for v in value)
    return frozenset(ids)
