"""Rounding in bfloat16 between a server, the trainer and its shards, with logits of real size.

A trained model rounds a logprob by 0.01 to 0.06 nats, one of weights drawn as usual by a
fiftieth of that, with which no limit can be missed: see ``figures.of_real_size``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
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
from example_trainer.weights.mismatch import Mismatch, compare
from gpuchecks.figures import Figure, Place, below, holds, weights

SMOLLM2 = "smollm2-135m-instruct"
BATCHES = 4
# Learning rates whose one step moves logprobs by about 0.2 nats, as in a run of SmolLM2.
ONE_STEP = {"random": 5e-4, "SmolLM2": 2e-5}
# Of a float32 residual stream and float32 logits; SmolLM2 has 0.023, bfloat16 throughout 0.049.
SERVER_MEAN = 0.035
SHARDS_MEAN = 5e-3


def rounding(place: Place) -> list[Figure]:
    """The default limits against a local server, and shards of one rank against autocast."""
    figures = []
    for name, model in models(place).items():
        if model is None:
            figures.append(Figure(f"{name}: left out", "its folder is not on this machine"))
            continue
        figures += [
            Figure(f"{name}: {f.what}", f.value, f.bound, f.ok)
            for f in serve_weights(place, model, ONE_STEP[name])
        ]
    if place.on_cuda:  # a CPU has no device to offload from: two ranks are in the tests
        figures.append(shards(place))
    return figures


def models(place: Place) -> dict[str, Path | None]:
    """The random model, and the trained one of the quickstart where it was downloaded."""
    cache = Path(os.environ.get("ATROPOS_CACHE", Path.home() / ".cache" / "atropos"))
    trained = cache / SMOLLM2
    has_trained = place.on_cuda and (trained / "config.json").is_file()
    return {"random": weights(place), "SmolLM2": trained if has_trained else None}


def serve_weights(place: Place, model: Path, lr: float) -> list[Figure]:
    """A correct server is accepted; one a step behind is refused within two batches."""
    server = load_model(str(model), device=place.device, dtype="bfloat16")
    policy = loading.load(settings(place, model))
    limits = Agreement.of("bfloat16")
    looks = [distance(policy, sample_tokens(server, seed)) for seed in range(BATCHES)]
    accepted = sum(limits.accepts(look, Tokens.SAMPLED) for look in looks)
    total = sum(looks, Mismatch())
    train_once(policy, sample_tokens(server, BATCHES), lr)
    stale = [distance(policy, sample_tokens(server, BATCHES + 1 + i)) for i in range(2)]
    refused = not all([limits.accepts(look, Tokens.SAMPLED) for look in stale])
    return [
        below("server against trainer, mean", total.mean, SERVER_MEAN, " nats"),
        Figure("server against trainer, largest", f"{total.max:.3g} nats", "no limit"),
        holds(
            "batches of a correct server accepted", accepted, f"{BATCHES}", accepted == BATCHES
        ),
        Figure("a step behind, mean", f"{stale[0].mean:.3g} nats"),
        holds(
            "a server a step behind", "refused" if refused else "accepted", "refused", refused
        ),
    ]


def shards(place: Place) -> Figure:
    """FSDP2 of one rank, whose parameters are bfloat16 in a pass, against autocast."""
    model = weights(place)
    rows = [unsampled_row(list(range(6 + i, 70 + i)), f"{i}") for i in range(4)]
    alone = torch.tensor(flat(loading.load(settings(place, model)).trained_logprobs(rows)))
    cfg = settings(place, model, cpu_offload=True)
    with ranks.start(cfg) as world:
        sharded = torch.tensor(flat(loading.load(cfg, world).trained_logprobs(rows)))
    mean = float((sharded - alone).abs().mean())
    return below("shards of one rank against autocast, mean", mean, SHARDS_MEAN, " nats")


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
    return sum((compare(ours, theirs, 0.2) for ours, theirs in pairs), Mismatch())


def train_once(policy: Policy, rows: list[Row], lr: float) -> None:
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    for plan in policy.plan(rows):
        scores = policy.score(plan)
        loss: Tensor = -(scores.logprobs * scores.mask).sum() / 100
        torch.autograd.backward(loss)
    optimizer.step()


def flat(values_R_T: list[list[float]]) -> list[float]:
    return [value for row in values_R_T for value in row]
