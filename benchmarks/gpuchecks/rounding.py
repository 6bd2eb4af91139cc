"""Rounding in bfloat16 of a server, the trainer and its shards, against a reference in float32.

    float32 reference <- distance of: reference in bfloat16, server, trainer, one rank of FSDP

The rounding of each is divided by that of the reference in bfloat16 on the same tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atroposlib.inference.engine.core import EngineCore, EngineLimits
from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.inference.engine.served_model import ServedModel, load_model
from example_trainer.data.rows import Row, at_trained, unsampled_row
from example_trainer.distributed import ranks
from example_trainer.model import loading
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights.agreement import Agreement, Tokens
from example_trainer.weights.mismatch import Mismatch, mismatch_of
from gpuchecks.figures import Figure, Place, below, holds
from gpuchecks.models import Reference, weights

SMOLLM2 = "smollm2-135m-instruct"
BATCHES = 4
# Learning rates of the steps that make a server stale.
RATES = {"random": 1e-5, "SmolLM2": 2e-5}
STALE_NATS = 0.15  # mean of a step that a server must not miss; less may pass as rounding
MAX_STEPS = 20
# Rounding of logprobs over that of the reference in bfloat16: 1 where only products round.
MORE_THAN_REFERENCE = 1.4
SHARDS_MEAN = 5e-3  # nats between a single rank of FSDP and autocast


def rounding(place: Place) -> list[Figure]:
    """Server, trainer and shards against the reference; the default limits against the server."""
    figures = []
    for name, model in models(place).items():
        if model is None:
            figures.append(Figure(f"{name}: left out", "its folder is not on this machine"))
            continue
        figures += [
            Figure(f"{name}: {f.what}", f.value, f.bound, f.ok)
            for f in server_figures(place, model, RATES[name])
        ]
    return [*figures, *shards(place)]


def models(place: Place) -> dict[str, Path | None]:
    """The random model, and the quickstart's trained model where it was downloaded."""
    cache = Path(os.environ.get("ATROPOS_CACHE", Path.home() / ".cache" / "atropos"))
    trained = cache / SMOLLM2
    has_trained = place.on_cuda and (trained / "config.json").is_file()
    return {"random": weights(place), "SmolLM2": trained if has_trained else None}


def server_figures(place: Place, model: Path, rate: float) -> list[Figure]:
    """A correct server is accepted; a stale server is refused within two batches."""
    server = load_model(str(model), device=place.device, dtype="bfloat16")
    policy = loading.load_policy(settings(place, model))
    limits = Agreement.of("bfloat16")
    batches = [sample_tokens(server, seed) for seed in range(BATCHES)]
    looks = [distance(policy, rows) for rows in batches]
    accepted = sum(limits.judge(look, Tokens.SAMPLED) for look in looks)
    figures = [
        *against_reference(place, model, policy, [row for rows in batches for row in rows]),
        Figure("server against trainer, mean", f"{sum(looks, Mismatch()).mean:.3g} nats"),
        holds(
            "batches of a correct server accepted", accepted, f"{BATCHES}", accepted == BATCHES
        ),
    ]
    steps = train_until_stale(policy, server, rate)
    stale = [distance(policy, sample_tokens(server, BATCHES + 1 + i)) for i in range(2)]
    refused = not all([limits.judge(look, Tokens.SAMPLED) for look in stale])
    return [
        *figures,
        Figure(f"a server behind by {steps} steps, mean", f"{stale[0].mean:.3g} nats"),
        holds("such a server", "refused" if refused else "accepted", "refused", refused),
    ]


def against_reference(
    place: Place, model: Path, policy: Policy, rows: list[Row]
) -> list[Figure]:
    """Rounding of the trainer and of the server that sampled the rows."""
    reference = Reference(model, place.device)
    exact = reference.of_labels(rows, torch.float32)
    rounding = mean_distance(reference.of_labels(rows, torch.bfloat16), exact)
    behaviour = [at_trained(row, row.behaviour_logprobs) for row in rows]
    by_side = {"trainer": policy.trained_logprobs(rows), "server": behaviour}
    figures = [Figure("reference in bfloat16 against float32, mean", f"{rounding:.3g} nats")]
    for name, logprobs_R_T in by_side.items():
        error = mean_distance(torch.tensor(flat(logprobs_R_T)), exact) / rounding
        what = f"{name}: logprob error over that of the reference"
        figures.append(below(what, error, MORE_THAN_REFERENCE))
    return figures


def mean_distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().mean())


def shards(place: Place) -> list[Figure]:
    """FSDP2 of a single rank, whose parameters are bfloat16 in a pass, against autocast."""
    model = weights(place)
    rows = [unsampled_row(list(range(6 + i, 70 + i)), f"{i}") for i in range(4)]
    alone = torch.tensor(
        flat(loading.load_policy(settings(place, model)).trained_logprobs(rows))
    )
    figures = []
    # A CPU has no device to offload from.
    for offload in (False, True) if place.on_cuda else (False,):
        cfg = settings(place, model, cpu_offload=offload)
        with ranks.join_ranks(cfg) if offload else one_rank(place) as world:
            sharded = torch.tensor(
                flat(loading.load_policy(cfg, world).trained_logprobs(rows))
            )
        what = "one rank of FSDP" + (" with cpu_offload" if offload else "")
        mean = mean_distance(sharded, alone)
        figures.append(below(f"{what} against autocast, mean", mean, SHARDS_MEAN, " nats"))
    return figures


@contextmanager
def one_rank(place: Place) -> Iterator[ranks.Ranks]:
    """A process group of this process alone, so that the model is sharded."""
    backend = "cpu:gloo,cuda:nccl" if place.on_cuda else "gloo"
    store: Any = dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    device = torch.device("cuda", 0) if place.on_cuda else torch.device("cpu")
    yield ranks.Ranks(0, 1, device)
    dist.destroy_process_group()


def settings(place: Place, model: Path, **more: object) -> TrainingConfig:
    return TrainingConfig(
        model_name=str(model),
        device=place.device,
        dtype="bfloat16",
        seq_len=256,
        inference_urls=[],
        **more,
    )


@torch.inference_mode()
def sample_tokens(server: ServedModel, seed: int) -> list[Row]:
    """Rows that the local engine sampled, with its logprobs."""
    core = EngineCore(server, EngineLimits(), seed=seed, weight_version=0)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    requests = [
        GenerationRequest(prompt_ids=[10 + 3 * i, 9, 12 + i, 20], params=params, n=4)
        for i in range(8)
    ]
    for request in requests:
        core.add(request)
    while not all(request.future.done() for request in requests):
        core.step(True)
    rows = []
    for request in requests:
        for output in request.future.result().outputs:
            whole = request.prompt_ids + output.tokens
            hidden = len(request.prompt_ids) - 1
            row = unsampled_row(whole, "g", [-100] * hidden + output.tokens)
            rows.append(replace(row, behaviour_logprobs=[0.0] * hidden + output.logprobs))
    return rows


def distance(policy: Policy, rows: list[Row]) -> Mismatch:
    sampler = [at_trained(row, row.behaviour_logprobs) for row in rows]
    pairs = zip(policy.trained_logprobs(rows), sampler)
    return sum((mismatch_of(ours, theirs, 0.2) for ours, theirs in pairs), Mismatch())


def train_until_stale(policy: Policy, server: ServedModel, rate: float) -> int:
    """Train on the server's samples until their logprobs moved by STALE_NATS.

    Returns:
        The number of steps.

    Raises:
        RuntimeError: MAX_STEPS did not move the logprobs so far.
    """
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate)
    rows = sample_tokens(server, BATCHES)
    for step in range(1, MAX_STEPS + 1):
        for plan in policy.plan(rows):
            scores = policy.score(plan)
            loss: Tensor = -(scores.logprobs * scores.mask).sum() / 100
            torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if distance(policy, rows).mean >= STALE_NATS:
            return step
    raise RuntimeError(
        f"{MAX_STEPS} steps of rate {rate} move logprobs less than {STALE_NATS}"
    )


def flat(values_R_T: list[list[float]]) -> list[float]:
    return [value for row in values_R_T for value in row]
