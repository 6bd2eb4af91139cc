"""The differentiable module: tokens of a micro-batch -> its scores.

All parameters are used inside ``forward`` of a single module, the base model as well as the
output head, so that FSDP2 can shard that module and each of its decoder layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atroposlib.errors import ConfigError
from atroposlib.utils.models.causal_lm import LogitTransform, decoder
from atroposlib.utils.models.low_precision import autocast, widen_residual
from atroposlib.utils.models.routers import RouterReplay
from example_trainer.data.packing import MicroBatch
from example_trainer.data.rows import Row, at_trained
from example_trainer.model.attention import Layout, layout_of
from example_trainer.model.fused_logprobs import TokenScores, Wanted, token_scores

# What transformers calls the head of a token classification model.
VALUE_HEADS = ("score", "classifier")


@dataclass(frozen=True)
class Inputs:
    """A micro-batch as tensors.

    No pytree: FSDP2 casts float tensors in arguments, and temperatures must stay float32.
    """

    tokens: Tensor  # (lines, width)
    positions: Tensor | None  # (lines, width); None: 0, 1, ... in each line
    layout: Layout | None  # layout of a packed micro-batch's line
    nodes: Tensor  # (H,) into lines * width
    wanted: Wanted
    entropy_grad: bool = False
    experts: Tensor | None = None  # (lines * width, L * K) of a router replay
    # Of rows with pictures: positions (A, lines, width) where a model has axes, pixel tensors.
    pictures: dict[str, Tensor] | None = None


def inputs_of(
    microbatch: MicroBatch,
    device: torch.device,
    *,
    padded: bool = False,
    entropy_grad: bool = False,
    teacher: bool = False,
) -> Inputs:
    """Tensors of a micro-batch on ``device``; ``teacher``: with the candidates of a teacher."""
    tokens = torch.zeros(microbatch.computed, dtype=torch.long)
    positions = torch.zeros_like(tokens)
    for pack, start in zip(microbatch.packs, microbatch.starts):
        tokens[start : start + len(pack.tokens)] = torch.from_numpy(pack.tokens)
        positions[start : start + len(pack.tokens)] = torch.from_numpy(pack.positions)
    shape = microbatch.lines, microbatch.width
    padded = padded or bool(microbatch.pictures)
    counts = np.bincount(microbatch.head_index, minlength=len(microbatch.nodes)).tolist()
    wanted = Wanted(
        torch.tensor(microbatch.temperatures, dtype=torch.float32).to(device),
        ids(microbatch.head_index, device),
        ids(microbatch.targets, device),
        counts,
        _rectangle(microbatch, device) if teacher else None,
        torch.tensor(microbatch.teacher_temperatures, dtype=torch.float32).to(device),
    )
    return Inputs(
        tokens.view(shape).to(device),
        None if padded else positions.view(shape).to(device),
        None if padded else layout_of(microbatch.packs, device),
        ids(microbatch.nodes, device),
        wanted,
        entropy_grad,
        _experts(microbatch, device),
        _pictures(microbatch, device) if microbatch.pictures else None,
    )


def _pictures(microbatch: MicroBatch, device: torch.device) -> dict[str, Tensor]:
    pictures = microbatch.pictures
    inputs = {
        name: torch.cat([of_row.tensors[name] for of_row in pictures]).to(device)
        for name in pictures[0].tensors
    }
    if pictures[0].positions is not None:
        lines = [of_row.positions_up_to(microbatch.width) for of_row in pictures]
        inputs["position_ids"] = torch.stack(lines, 1).to(device)  # (A, lines, width)
    return inputs


def _experts(microbatch: MicroBatch, device: torch.device) -> Tensor | None:
    if not any(pack.experts for pack in microbatch.packs):
        return None
    width = len(microbatch.packs[0].experts[0]) // 2
    table = torch.full((microbatch.computed, width), -1)
    for pack, start in zip(microbatch.packs, microbatch.starts):
        experts = np.frombuffer(b"".join(pack.experts), np.int16).reshape(-1, width)
        table[start : start + len(experts)] = torch.from_numpy(experts.astype(np.int64))
    return table.to(device)


def _rectangle(microbatch: MicroBatch, device: torch.device) -> Tensor:
    """(N, K) candidates, filled up with token 0, whose score is not used."""
    longest = max(map(len, microbatch.teacher_ids), default=0)
    table = torch.zeros(len(microbatch.targets), longest, dtype=torch.long)
    for n, candidates in enumerate(microbatch.teacher_ids):
        table[n, : len(candidates)] = torch.tensor(candidates)
    return table.to(device)


def ids(values: Any, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.long).to(device)


class Backbone(nn.Module):
    """The decoder of a transformers model, run on micro-batches."""

    replay: RouterReplay | None = None

    def __init__(self, model: nn.Module, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype
        # Parameters of which ranks of a tensor group have parts of the gradient, see fsdp.
        self.partial: set[str] = set()
        widen_residual(inner_model(model).get_input_embeddings(), compute_dtype)

    def replay_routers(self, fitted: Mapping[str, Sequence[Any]]) -> None:
        """Give the experts of the rows to the routers; ``fitted`` has the formulas of each class."""
        self.replay = RouterReplay(inner_model(self.model), fitted)

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute in float32 meanwhile."""
        kept = self.compute_dtype
        self.compute_dtype = torch.float32
        try:
            yield
        finally:
            self.compute_dtype = kept

    def hidden(self, inputs: Inputs) -> Tensor:
        """(H, D) of the positions that need scores."""
        extras: dict[str, Any] = {}
        if inputs.layout is not None:
            # transformers passes a 4-D mask on unchanged instead of building a mask of the
            # whole line. It is not used: attention goes by the layout.
            unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=inputs.tokens.device)
            extras = {"packed": inputs.layout, "attention_mask": unread}
        if inputs.positions is not None:
            extras["position_ids"] = inputs.positions
        if self.replay is not None:
            self.replay.follow(inputs.experts)
        body = decoder(inner_model(self.model))
        if inputs.pictures is not None:
            body = inner_model(self.model).base_model
            extras.update(inputs.pictures)
        with autocast(inputs.tokens.device, self.compute_dtype):
            output = body(input_ids=inputs.tokens, use_cache=False, **extras)
        hidden: Tensor = output.last_hidden_state.flatten(0, 1)[inputs.nodes]
        return hidden

    @torch.no_grad()
    def own_hidden(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """(rows, T, D) of plain rows, with the model's own attention."""
        at = {} if positions is None else {"position_ids": positions}
        output = decoder(inner_model(self.model))(tokens, use_cache=False, **at)
        hidden: Tensor = output.last_hidden_state
        return hidden


class TokenModule(Backbone):
    """Logprobs and entropy; see fused_logprobs.TokenScores."""

    transform = LogitTransform()

    def follow_head(self, transform: LogitTransform) -> None:
        """Apply what the model applies after its output head."""
        self.transform = transform

    def forward(self, inputs: Inputs) -> TokenScores:
        head = output_head(self.model)
        return token_scores(
            self.hidden(inputs),
            head.weight,
            head.bias,
            inputs.wanted,
            entropy_grad=inputs.entropy_grad,
            dtype=self.compute_dtype,
            transform=self.transform,
        )


class ValueModule(Backbone):
    """A number per position, of a model with a token classification head."""

    def forward(self, inputs: Inputs) -> Tensor:
        hidden = self.hidden(inputs)
        head = value_head(self.model)
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = head(hidden.to(head.weight.dtype))[:, 0]  # (H,)
        return values.float()[inputs.wanted.positions]  # (N,)


def inner_model(model: Any) -> Any:
    """The transformers model, also inside of a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def reads_pictures(model: Any) -> bool:
    return hasattr(inner_model(model).base_model, "get_image_features")


def decoder_layers(model: Any) -> nn.ModuleList:
    lists = [m for m in decoder(inner_model(model)).modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise ConfigError(f"{type(inner_model(model)).__name__} has no list of decoder layers")
    return max(lists, key=len)


def output_head(model: Any) -> nn.Linear:
    """The projection onto the vocabulary; ConfigError if it is not a plain matrix."""
    head = inner_model(model).get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ConfigError(
            f"the output head of {type(inner_model(model)).__name__} is a"
            f" {type(head).__name__}, not a plain matrix; leave it out of lora_target_modules"
        )
    return head


def value_head(model: Any) -> nn.Linear:
    """The projection onto a number of a token classification model."""
    owner = inner_model(model)
    for name in VALUE_HEADS:
        if isinstance(head := getattr(owner, name, None), nn.Linear):
            return head
    raise ConfigError(f"{type(owner).__name__} has no linear value head")


def scatter(microbatch: MicroBatch, values_N: Tensor, device: torch.device) -> Tensor:
    """(B, T) or (B, T, K), 0 where a row has fewer trained tokens; keeps the graph."""
    table = values_N.new_zeros(*microbatch.shape, *values_N.shape[1:])
    return table.index_put(
        (ids(microbatch.rows, device), ids(microbatch.columns, device)), values_N
    )


def scored_mask(microbatch: MicroBatch, device: torch.device) -> Tensor:
    """(B, T) bool, True where a row has a trained token."""
    mask = torch.zeros(microbatch.shape, dtype=torch.bool)
    mask[torch.from_numpy(microbatch.rows), torch.from_numpy(microbatch.columns)] = True
    return mask.to(device)


def pad_to_tensor(
    microbatch: MicroBatch,
    values_R_T: Sequence[Sequence[float]],
    device: torch.device,
    fill: float = 0.0,
) -> Tensor:
    """(B, T): entry (b, t) belongs to trained token t of the b-th row of the micro-batch."""
    table = np.full(microbatch.shape, fill, dtype=np.float32)
    for b, i in enumerate(microbatch.row_ids):
        table[b, : len(values_R_T[i])] = values_R_T[i]
    return torch.from_numpy(table).to(device)


def pad_teacher(
    microbatch: MicroBatch, rows: Sequence[Row], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Teacher logprobs and where they are present, both (B, T, K); K of the longest entry."""
    entries = [
        at_trained(rows[i], rows[i].teacher_logprobs or [[] for _ in rows[i].labels])
        for i in microbatch.row_ids
    ]
    width = max((len(candidates) for row in entries for candidates in row), default=0)
    logprobs = torch.zeros(*microbatch.shape, width)
    present = torch.zeros(*microbatch.shape, width, dtype=torch.bool)
    for b, row in enumerate(entries):
        for t, entry in enumerate(row):
            logprobs[b, t, : len(entry)] = torch.tensor(entry)
            present[b, t, : len(entry)] = True
    return logprobs.to(device), present.to(device)
