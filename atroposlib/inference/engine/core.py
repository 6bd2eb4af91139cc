"""Generation loop without threads: admit, prefill, decode, finish; a step per call.

    add -> waiting -> admit -> prefill -> decode -> decode ... -> finish -> future
                               (a forward per distinct prompt)

Continuous batching: sequences join and leave between steps, so a new sequence starts as soon as
memory is free. The engine thread owns the core; tests may call it directly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atroposlib.errors import AtroposError, InferenceUnavailable
from atroposlib.inference.engine.batch import RunningBatch, Scheduler, prefill_groups
from atroposlib.inference.engine.kv_cache import SlotCache, plan_capacity
from atroposlib.inference.engine.request import (
    FinishReason,
    GenerationRequest,
    Output,
    Prompt,
    SequenceState,
    TextStream,
    TokenEvent,
)
from atroposlib.inference.engine.sampling import (
    derive_seed,
    sample,
    scale,
    top_logprobs,
    uniform,
)
from atroposlib.inference.engine.served_model import ServedModel
from atroposlib.utils.models.routers import chosen_experts, outputs_of


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of the batch. ``kv_budget_tokens`` counts rows x columns of KV memory."""

    max_batch: int = 256
    kv_budget_tokens: int = 1 << 16
    prefill_tokens: int = 8192  # padded tokens in a prefill forward


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    prefilled_tokens: int = 0  # prompt_tokens minus the shared prompts
    generated_tokens: int = 0
    finished_sequences: int = 0
    decode_steps: int = 0
    weight_updates: int = 0
    forgotten_pauses: int = 0  # bounded pauses that ended without a /resume

    def add_prompts(self, sequences: Iterable[SequenceState], prefilled_tokens: int) -> None:
        """Count the prompts of admitted sequences; equal prompts are computed once."""
        self.prompt_tokens += sum(sequence.prompt_len for sequence in sequences)
        self.prefilled_tokens += prefilled_tokens

    def add_decode_step(self) -> None:
        self.decode_steps += 1

    def add_sampled(self, tokens: int) -> None:
        self.generated_tokens += tokens

    def add_finished(self, sequences: int) -> None:
        self.finished_sequences += sequences

    def add_weight_update(self) -> None:
        self.weight_updates += 1

    def add_forgotten_pause(self) -> None:
        self.forgotten_pauses += 1


class EngineCore:
    """Waiting queue, running batch, KV memory and the weights' version."""

    def __init__(
        self,
        served: ServedModel,
        limits: EngineLimits,
        *,
        seed: int | None,
        weight_version: int,
    ) -> None:
        self.served = served
        self.limits = limits
        self.weight_version = weight_version
        self.counters = Counters()
        self.scheduler = Scheduler(limits.max_batch, limits.kv_budget_tokens)
        self.batch = RunningBatch(served.device)
        self.to_score: list[GenerationRequest] = []
        self._in_flight: set[GenerationRequest] = set()
        self._cache = SlotCache(served.num_layers, served.dtype)
        self._random = random.Random(seed)
        self._is_eos = torch.zeros(served.vocab_size, dtype=torch.bool, device=served.device)
        self._is_eos[list(served.eos_ids)] = True
        self._is_placeholder = torch.zeros_like(self._is_eos)
        self._is_placeholder[list(served.reader.token_ids if served.reader else ())] = True

    # --- requests ---------------------------------------------------------

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; from now on only this class resolves its future."""
        if not request.future.set_running_or_notify_cancel():
            return
        self._in_flight.add(request)
        request.future.add_done_callback(lambda _: self._in_flight.discard(request))
        if request.prompt_logprobs is not None:
            self.to_score.append(request)
        params = request.params
        base = params.seed if params.seed is not None else self._random.getrandbits(62)
        needs_text = bool(params.stop) or request.on_event is not None
        self.scheduler.add(
            SequenceState(
                request=request,
                index=index,
                seed=derive_seed(base, index),
                text=TextStream(self.served.tokenizer, params.stop) if needs_text else None,
            )
            for index in range(request.num_sequences)
        )
        request.resolve_if_complete()

    def remove(self, request: GenerationRequest) -> None:
        """Free the rows and queue entries of a cancelled request."""
        self.scheduler.remove(request)
        self.to_score = [r for r in self.to_score if r is not request]
        self._drop_rows(
            [i for i, s in enumerate(self.batch.sequences) if s.request is request]
        )
        self._fail(request, InferenceUnavailable("the request was cancelled"))

    def abort_all(self) -> None:
        """Finish running sequences with their tokens so far, waiting sequences with none."""
        self._finish({row: FinishReason.ABORT for row in range(len(self.batch))})
        for sequence in self.scheduler.drain():
            nothing = Output([], [], FinishReason.ABORT, [], [])
            sequence.request.deliver(sequence.index, nothing)

    def fail_all(self, error: AtroposError) -> None:
        """After a failed forward: set the error on every request in flight and start empty."""
        self.scheduler.drain()
        self.to_score = []
        self.batch = RunningBatch(self.served.device)
        self._cache = SlotCache(self.served.num_layers, self.served.dtype)
        for request in list(self._in_flight):
            self._fail(request, error)

    def _fail(self, request: GenerationRequest, error: AtroposError) -> None:
        if not request.future.done():
            request.future.set_exception(error)

    # --- a step --------------------------------------------------------------------------

    def step(self, admit: bool) -> None:
        """Admit sequences that fit (if allowed), then sample a token for every running sequence."""
        if admit:
            self._prefill(self.scheduler.admit(self.batch.sequences))
        if self.batch.sequences:
            self._decode()

    def _prefill(self, admitted: list[SequenceState]) -> None:
        """Forward each distinct prompt once and sample the first token of each sequence."""
        by_prompt: dict[Prompt, list[SequenceState]] = {}
        for sequence in admitted:
            by_prompt.setdefault(sequence.prompt, []).append(sequence)
        prompts = list(by_prompt)
        lengths_P = [len(prompt.ids) for prompt in prompts]
        pictured = [bool(prompt.pictures) for prompt in prompts]
        for group in self._prefill_groups(lengths_P, pictured):
            sequences = [s for i in group for s in by_prompt[prompts[i]]]
            lines = [k for k, i in enumerate(group) for _ in by_prompt[prompts[i]]]
            source = self._tensor(lines)
            self._reserve(sequences)
            rows = self.batch.join(sequences)
            for sequence in sequences:
                sequence.begin_version(self.weight_version, 0)
            ids, lengths = self.served.padded_prompts([prompts[i].ids for i in group])
            self.batch.tokens[rows, : ids.shape[1]] = ids[source]
            targets = torch.arange(rows.start, rows.stop, device=self.served.device)
            pictures = sequences[0].request.pictures
            with self._record_routers() as routed:
                if pictures is None:
                    logits = self.served.prefill(ids, lengths, self._cache, targets, source)
                else:
                    logits = self.served.prefill_pictures(ids, pictures, self._cache, targets)
            _keep_experts(sequences, lines, routed, len(ids))
            self.counters.add_prompts(sequences, sum(len(prompts[i].ids) for i in group))
            self._sample(rows, logits[source])

    def _prefill_groups(self, lengths: list[int], pictured: list[bool]) -> list[list[int]]:
        """Indices of the prompts of each forward; a prompt with pictures has its own."""
        texts = [i for i, has_pictures in enumerate(pictured) if not has_pictures]
        groups = prefill_groups([lengths[i] for i in texts], self.limits.prefill_tokens)
        alone = [[i] for i, has_pictures in enumerate(pictured) if has_pictures]
        return [[texts[i] for i in group] for group in groups] + alone

    def _decode(self) -> None:
        batch = self.batch
        rows = slice(0, len(batch))
        positions = batch.column("length", rows) - 1
        last = batch.tokens[torch.arange(len(batch), device=self.served.device), positions]
        with self._record_routers() as routed:
            shifts = batch.column("rope_shift", rows) if batch.any_pictures else None
            logits = self.served.decode(last, positions, self._cache, batch.widest(), shifts)
        _keep_experts(batch.sequences, range(len(batch)), routed, len(batch))
        self.counters.add_decode_step()
        self._sample(rows, logits)

    def _record_routers(self) -> AbstractContextManager[list[Any]]:
        """Outputs of the routers in a pass; none unless a running request asks for experts."""
        routers = self.served.routers if self.batch.any_experts else ()
        return outputs_of([router.module for router in routers])

    def _sample(self, rows: slice, logits: Tensor) -> None:
        """Sample a token for these rows; sequences that end leave the batch."""
        batch = self.batch
        lengths = batch.column("length", rows)
        params = batch.row_params(rows)
        scaled = scale(logits, params.temperature)
        banned = None
        if batch.any_min_tokens:
            early = lengths < batch.column("min_len", rows)
            banned = early[:, None] & self._is_eos
        if batch.any_pictures:  # a sampled placeholder would count as a picture later
            pictured = batch.has_pictures(rows)[:, None] & self._is_placeholder
            banned = pictured if banned is None else banned | pictured
        uniforms = uniform(params.seed, lengths - batch.column("prompt_len", rows))
        tokens, logprobs = sample(scaled, params, uniforms, banned)
        if not bool(torch.isfinite(logprobs).all()):
            raise InferenceUnavailable("the model returned logits that are not finite")
        batch.append(rows, tokens, logprobs)
        self.counters.add_sampled(len(tokens))
        ends = self._is_eos[tokens] & ~batch.column("ignore_eos", rows)
        full = batch.column("length", rows) >= batch.column("max_len", rows)
        done = (ends | full).nonzero().squeeze(1)
        reasons = {
            rows.start + row: FinishReason.STOP if end else FinishReason.LENGTH
            for row, end in zip(done.tolist(), ends[done].tolist())
        }
        for row in self._inspect_rows(rows, scaled, tokens, logprobs):
            reasons[row] = FinishReason.STOP
        self._finish(reasons)

    def _inspect_rows(
        self, rows: slice, scaled: Tensor, tokens: Tensor, logprobs: Tensor
    ) -> list[int]:
        """Streaming, stop strings and top logprobs; returns the rows that must stop."""
        watched = [row for row in self.batch.watched if rows.start <= row < rows.stop]
        if not watched:
            return []
        sequences = [self.batch.sequences[row] for row in watched]
        k = max(s.request.params.top_logprobs for s in sequences)
        top_ids, top_values = top_logprobs(scaled, k) if k else (None, None)
        stopped: list[int] = []
        for row, sequence in zip(watched, sequences):
            at, wanted = row - rows.start, sequence.request.params.top_logprobs
            token = int(tokens[at])
            if wanted and top_ids is not None and top_values is not None:
                ids, values = top_ids[at, :wanted].tolist(), top_values[at, :wanted].tolist()
                sequence.top.append(dict(zip(ids, values)))
            piece = sequence.text.push(token) if sequence.text else ""
            if token in sequence.request.params.stop_token_ids or sequence.text_stopped:
                stopped.append(row)
            if sequence.request.on_event:
                top = sequence.top[-1] if sequence.top else None
                event = TokenEvent(sequence.index, token, float(logprobs[at]), top, piece)
                sequence.request.on_event(event)
        return stopped

    def _finish(self, reasons: dict[int, FinishReason]) -> None:
        """Deliver the outputs of these rows and remove the rows from the batch."""
        if not reasons:
            return
        batch, rows = self.batch, sorted(reasons)
        index, width = self._tensor(rows), batch.widest()
        tokens = batch.tokens[index, :width].tolist()
        logprobs = batch.logprobs[index, :width].tolist()
        lengths = batch.column("length", index).tolist()
        sequences = [batch.sequences[row] for row in rows]
        self._drop_rows(rows)
        self.counters.add_finished(len(rows))
        for i, sequence in enumerate(sequences):
            produced = slice(sequence.prompt_len, lengths[i])
            output = Output(
                tokens=tokens[i][produced],
                logprobs=logprobs[i][produced],
                finish_reason=reasons[rows[i]],
                versions=sequence.version_spans(lengths[i] - sequence.prompt_len),
                top=sequence.top,
                experts=np.concatenate(sequence.experts) if sequence.experts else None,
                stop_text=(
                    sequence.text.text if sequence.text and sequence.text_stopped else None
                ),
            )
            sequence.request.deliver(sequence.index, output)

    def _drop_rows(self, rows: list[int]) -> None:
        if rows:
            width = self.batch.widest()
            self._cache.move_rows(*self.batch.leave(rows), width)

    def _reserve(self, sequences: list[SequenceState]) -> None:
        """Reserve batch and cache memory for these sequences up to their last token."""
        batch, cache = self.batch, self._cache
        rows = len(batch) + len(sequences)
        columns = max(s.reserved_len for s in (*batch.sequences, *sequences))
        capacity = plan_capacity(
            (cache.num_rows, cache.num_columns), (rows, columns), self.limits.kv_budget_tokens
        )
        if capacity != (cache.num_rows, cache.num_columns):
            used = (len(batch), batch.widest())
            cache.resize(capacity, used)
            batch.resize(capacity, used)

    # --- scoring and weights ---------------------------------------------------------------

    def score(self) -> None:
        """Teacher-forced logprobs of prompts, in batches bounded by ``prefill_tokens``."""
        requests, self.to_score = self.to_score, []
        lengths = [len(r.prompt_ids) for r in requests]
        for group in prefill_groups(lengths, self.limits.prefill_tokens):
            members = [requests[i] for i in group]
            scored = self.served.score(
                [r.prompt_ids for r in members],
                [r.params.temperature for r in members],
                [r.prompt_logprobs or 0 for r in members],
            )
            for request, entries in zip(members, scored):
                request.scored = entries
                request.resolve_if_complete()

    def update_weights(self, load: Callable[[Any], int], version: int | None) -> int:
        """Run ``load`` on the model and recompute the KV of kept rows; return its count."""
        count = load(self.served.model)
        self.served.weights_changed()
        self.counters.add_weight_update()
        self.begin_version(self.weight_version + 1 if version is None else version)
        self._recompute_kv()
        return count

    def begin_version(self, version: int) -> None:
        """Tokens sampled from now on carry ``version``."""
        self.weight_version = version
        lengths = self.batch.column("length", slice(0, len(self.batch))).tolist()
        for sequence, length in zip(self.batch.sequences, lengths):
            sequence.begin_version(version, length - sequence.prompt_len)

    def _recompute_kv(self) -> None:
        """Recompute keys and values of the kept rows with the new weights."""
        batch = self.batch
        # the last known token has not been forwarded yet: the next decode does that
        lengths = (batch.column("length", slice(0, len(batch))) - 1).tolist()
        pictured = [bool(sequence.request.pictures) for sequence in batch.sequences]
        for group in self._prefill_groups(lengths, pictured):
            rows, source = self._tensor(group), torch.arange(len(group), device=batch.device)
            known = self._tensor([lengths[row] for row in group])
            ids = batch.tokens[rows, : int(known.max())]
            pictures = batch.sequences[group[0]].request.pictures
            if pictures is None:
                self.served.prefill(ids, known, self._cache, rows, source)
            else:
                self.served.prefill_pictures(ids, pictures, self._cache, rows)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.served.device)


def _keep_experts(
    sequences: list[SequenceState], places: Sequence[int], routed: list[Any], lines: int
) -> None:
    """Keep the experts of a pass of ``lines`` lines; sequence i was line ``places[i]`` of it."""
    if not routed:
        return
    chosen = chosen_experts(routed, lines)
    for sequence, line in zip(sequences, places):
        if sequence.request.params.routed_experts:
            count = 1 if sequence.experts else sequence.prompt_len
            sequence.experts.append(chosen[line, :count].copy())
