"""Tokens per second, share of the device's peak and memory, each with a reference."""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import fmean
from typing import Any

import bench_inference
import bench_trainer
import torch

from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.inference.engine.served_model import load_model
from gpuchecks.figures import Figure, Place, below, holds, ratio
from gpuchecks.footprint import computed_gb
from gpuchecks.models import weights, workload
from trainerbench.workload import SIZES, rows_of

SAME_NORM = 0.03  # relative, of the gradient; bfloat16 products in another order
SAME_LOSS = 1e-3
SAME_LOGPROB = 0.03  # mean nats of a row between decoding with a cache and a whole pass


def step(place: Place) -> list[Figure]:
    """An optimizer step of every contestant of bench_trainer.py, on the same rows."""
    rows = {"groups": 8, "group_size": 8, "prompt": 256, "median": 400, "shortest": 32}
    load = workload(place, **rows, longest=1792, rows_per_pass=8, checkpointing=True)
    tokens = sum(len(row.tokens) for row in rows_of(load))
    results: dict[str, dict[str, Any]] = {}
    figures = [Figure("rows", f"{load.groups * load.group_size}, {tokens:,} tokens")]
    for contestant in bench_trainer.ORDER:
        try:
            results[contestant] = bench_trainer.measure(contestant, load, None, steps=2)
        except (ImportError, RuntimeError) as problem:  # RuntimeError: out of memory, or TRL
            why = f"{type(problem).__name__}: {problem}".split("\n")[0][:90]
            ours = contestant in ("shared", "packed", "padded")
            figures.append(Figure(f"{contestant}: left out", why, "", not ours))
        gc.collect()
        if place.on_cuda:
            torch.cuda.empty_cache()
    base = results["padded"]
    computed = computed_gb(SIZES[load.size], "adamw", load.budget)
    figures.append(Figure("memory of a packed pass, computed", f"{computed:.2f} GB"))
    for contestant, result in results.items():
        speed = tokens / result["s"]
        figures += [
            ratio(f"{contestant}: speed", speed, tokens / base["s"], "tokens/s", "padded"),
            Figure(
                f"{contestant}: MFU and memory",
                f"{result['mfu']:.1%} of {result['peak_tflops']:.3g} TFLOP/s,"
                f" {result['peak_gb']:.2f} GB at most",
                f"{result['peak_gb'] / base['peak_gb']:.2f} x padded",
            ),
            below(
                f"{contestant}: gradient norm against padded",
                abs(result["norm"] / base["norm"] - 1),
                SAME_NORM,
            ),
            below(
                f"{contestant}: loss against padded",
                abs(result["loss"] - base["loss"]),
                SAME_LOSS,
            ),
        ]
    return figures


def generate(place: Place) -> list[Figure]:
    """The local engine against plain ``generate``; its logprobs against its own scores."""
    served = load_model(str(weights(place)), device=place.device)
    count, n, length, new = (16, 16, 64, 128) if place.on_cuda else (2, 4, 8, 8)
    engine = Engine(
        served, EngineLimits(max_batch=512), seed=0, num_threads=torch.get_num_threads()
    )
    engine.start()
    prompts = bench_inference.random_prompts(served, count, length)
    contestants: dict[str, Callable[[], int]] = {
        "engine": lambda: bench_inference.run_engine(engine, prompts, n, new),
        "generate": lambda: bench_inference.run_generate(served, prompts, n, new),
    }
    rates = {}
    for name, run in contestants.items():
        run()  # warm up
        rates[name] = max(bench_inference.measure(run)[0] for _ in range(2))
    params = SamplingParams(max_tokens=new, ignore_eos=True)
    request = GenerationRequest(prompt_ids=prompts[0], n=1, params=params)
    engine.submit(request)
    output = request.future.result(60).outputs[0]
    scored = served.score([prompts[0] + output.tokens], [1.0], [0])[0][len(prompts[0]) :]
    apart = [abs(next(iter(s.values())) - p) for s, p in zip(scored, output.logprobs) if s]
    engine.close()
    return [
        ratio("engine", rates["engine"], rates["generate"], "tokens/s", "generate"),
        Figure("generate", f"{rates['generate']:,.0f} tokens/s", f"{count * n} sequences"),
        holds("tokens of a sample", len(output.tokens), f"{new}", len(output.tokens) == new),
        below(
            "logprob while sampling against scored, mean", fmean(apart), SAME_LOGPROB, " nats"
        ),
    ]
