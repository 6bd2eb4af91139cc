"""The policy: a causal language model and its logprobs of packed rows.

rows --plan--> micro-batches --score--> logprobs, entropy    each rank its share
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.utils.models.causal_lm import LogitTransform
from atroposlib.utils.models.low_precision import kept_casts
from atroposlib.utils.models.vision import PictureReader
from example_trainer.data.packing import MicroBatch, Pack, pack_rows, plan_microbatches
from example_trainer.data.pictured import plan_pictured
from example_trainer.data.rows import Row, unsampled_row
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import attention
from example_trainer.model.scoring import (
    Backbone,
    TokenModule,
    inner_model,
    inputs_of,
    reads_pictures,
    scatter,
    scored_mask,
)


@dataclass
class Scores:
    """Scores of the trained tokens of a micro-batch; 0 where a row has fewer."""

    logprobs: Tensor  # (B, T)
    entropy: Tensor  # (B, T) of the distribution at the token's temperature
    mask: Tensor  # (B, T) bool
    teacher: Tensor | None = None  # (B, T, K) of a teacher's candidates, if asked for


@dataclass(frozen=True)
class ModelFacts:
    """What is measured of a model on loading; JSON values, which ranks share."""

    padded: bool
    share_prefixes: bool
    rope_switch: float
    transform: Sequence[Any] = ()  # fields of the LogitTransform of a policy
    routers: Mapping[str, Sequence[Any]] | None = None  # see routers.fitted_routers


@dataclass
class PackedModel:
    """A model, its tokenizer, and how its rows may be packed."""

    module: Backbone  # everything differentiable; what FSDP2 shards
    tokenizer: Any
    device: torch.device
    max_tokens_per_microbatch: int
    max_tokens_per_row: int = 2048
    padded: bool = False  # a line per row, for attention that cannot be packed
    share_prefixes: bool = False
    attention_crossover: float = float("inf")  # see packing.pack_rows
    rope_switch: float = float("inf")  # see packing.plan_microbatches
    world: Ranks = field(default_factory=Ranks.single)
    pictures: PictureReader | None = None  # None: the model reads text only

    @property
    def vocab_size(self) -> int:
        """Number of token ids of the model, of its text part where it has several."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def model(self) -> Any:
        """The transformers model, or a peft wrapper of it; trained parameters are float32."""
        return self.module.model

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.module.compute_dtype

    def adopt(self, facts: ModelFacts) -> None:
        """Set the model up as measured on it, or on another model of its architecture."""
        self.padded = facts.padded
        self.share_prefixes = facts.share_prefixes
        self.rope_switch = facts.rope_switch
        if not facts.padded:
            attention.register_attention()
            inner_model(self.model).set_attn_implementation(attention.NAME)
        if facts.routers is not None:
            self.module.replay_routers(facts.routers)

    @contextmanager
    def packed(self, *, share: bool, switch: float) -> Iterator[None]:
        """Pack rows wherever it is possible and compute in float32 meanwhile, for a measurement."""
        kept = self.padded, self.share_prefixes, self.rope_switch, self.attention_crossover
        self.padded, self.share_prefixes, self.rope_switch = False, share, switch
        self.attention_crossover = float("inf")
        try:
            with self.module.in_float32():
                yield
        finally:
            self.padded, self.share_prefixes, self.rope_switch, self.attention_crossover = kept

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def plan(self, rows: Sequence[Row], *, divisor: int = 1) -> list[MicroBatch]:
        """Forward passes that score every trained token of ``rows``.

        The same on every rank. Rank r of n takes the micro-batches r, r + n, ...; with ``divisor``
        n each has as many, and neighbours are of similar length.
        """
        texts = {i: row for i, row in enumerate(rows) if row.trained and not row.pictures}
        pictured = {i: row for i, row in enumerate(rows) if row.trained and row.pictures}
        if pictured and not reads_pictures(self.model):
            name = type(inner_model(self.model)).__name__
            raise ConfigError(
                f"{name} reads no pictures, and a row has some: name another model"
            )
        return plan_microbatches(
            self._packs(texts, across_groups=divisor == 1),
            rows,
            self.max_tokens_per_microbatch,
            divisor=divisor,
            padded=self.padded,
            switch=self.rope_switch,
        ) + plan_pictured(
            self._packs(pictured, share=False),
            rows,
            self.max_tokens_per_microbatch,
            divisor=divisor,
            switch=self.rope_switch,
        )

    def _packs(
        self, trained: Mapping[int, Row], *, share: bool = True, across_groups: bool = False
    ) -> list[Pack]:
        """Packs of rows by their number."""
        ids = list(trained)
        experts_R = None
        if (replay := self.module.replay) is not None:
            values = trained.values()
            experts_R = [replay.read(row.routed_experts, len(row.tokens)) for row in values]
        packs = pack_rows(
            list(trained.values()),
            max_tokens=self.max_tokens_per_microbatch,
            crossover=self.attention_crossover,
            share=share and self.share_prefixes and not self.padded,
            across_groups=across_groups,  # several ranks need several packs
            switch=self.rope_switch,
            experts_R=experts_R,
        )
        for pack in packs:
            pack.rows = [ids[i] for i in pack.rows]
        return packs

    def plan_share(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """The micro-batches of this rank; on every rank as many."""
        return self.plan(rows, divisor=self.world.size)[self.world.rank :: self.world.size]

    @torch.no_grad()
    def _score_trained(
        self, rows: Sequence[Row], score: Callable[[MicroBatch], Tensor]
    ) -> list[list[float]]:
        """A number per trained token, of all ranks together; every rank calls it."""
        ends = list(accumulate((len(row.trained) for row in rows), initial=0))
        numbers = torch.zeros(ends[-1])
        with kept_casts(self.device, self.compute_dtype):
            for microbatch in self.plan_share(rows):
                scored = score(microbatch).cpu()
                for b, i in enumerate(microbatch.row_ids):
                    numbers[ends[i] : ends[i + 1]] = scored[b, : ends[i + 1] - ends[i]]
        values = self.world.sum_(numbers).tolist()
        return [values[start:end] for start, end in zip(ends, ends[1:])]


@dataclass
class Policy(PackedModel):
    """The model being trained, or the frozen model that it is compared with."""

    module: TokenModule

    def adopt(self, facts: ModelFacts) -> None:
        super().adopt(facts)
        self.module.follow_head(LogitTransform(*facts.transform))

    def score(
        self,
        microbatch: MicroBatch,
        *,
        entropy_grad: bool = False,
        teacher: bool = False,
    ) -> Scores:
        """Logprobs and entropy of the trained tokens of a micro-batch.

        Args:
            entropy_grad: the entropy has a gradient.
            teacher: the rows' ``teacher_ids`` are scored as well, at ``teacher_temperature``.
        """
        inputs = inputs_of(
            microbatch,
            self.device,
            padded=self.padded,
            entropy_grad=entropy_grad,
            teacher=teacher,
        )
        logprobs_N, entropy_H, teacher_N_K = self.module(inputs)
        entropy_N = entropy_H[inputs.wanted.positions]
        candidates = None
        if teacher_N_K is not None:
            candidates = scatter(microbatch, teacher_N_K, self.device)
        return Scores(
            logprobs=scatter(microbatch, logprobs_N, self.device),
            entropy=scatter(microbatch, entropy_N, self.device),
            mask=scored_mask(microbatch, self.device),
            teacher=candidates,
        )

    def trained_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Logprob of every trained token at its temperature, without a gradient. Collective."""
        return self._score_trained(rows, lambda microbatch: self.score(microbatch).logprobs)

    def trained_entropies(self, rows: Sequence[Row]) -> list[list[float]]:
        """Entropy at every trained token, at its temperature, without a gradient. Collective."""
        return self._score_trained(rows, lambda microbatch: self.score(microbatch).entropy)

    def logprobs_of(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """Logprob of every token but the first of each sequence, at temperature 1."""
        return self.trained_logprobs(
            [unsampled_row(tokens, f"sequence {i}") for i, tokens in enumerate(sequences)]
        )
