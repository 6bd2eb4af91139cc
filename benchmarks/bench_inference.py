"""Tokens per second of the local engine against plain ``model.generate``, in the same run.

    python benchmarks/bench_inference.py --model DIR --prompts 8 --n 8 --max-tokens 6

Compare the ratio: both sides run alternately on the same machine in the same minutes, so load
on the machine affects both. CPU seconds are printed because wall time alone is unreliable on a
shared machine. ``generate`` gets its best case: all rows at once, equal lengths, without
logprobs.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.inference.engine.served_model import ServedModel, load_model
from atroposlib.testing.tiny import write_tiny_model


def main() -> None:
    options = parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or write_tiny_model(Path(scratch) / "tiny")
        served = load_model(str(directory), device=options.device, dtype=options.dtype)
        limits = EngineLimits(max_batch=max(512, options.prompts * options.n))
        engine = Engine(served, limits, seed=0, num_threads=options.threads)
        engine.start()
        prompts = random_prompts(served, options.prompts, options.prompt_tokens)
        contestants: dict[str, Callable[[], int]] = {
            "engine": lambda: run_engine(engine, prompts, options.n, options.max_tokens),
            "generate": lambda: run_generate(served, prompts, options.n, options.max_tokens),
        }
        for run in contestants.values():
            run()  # warm up
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _ in range(options.repeats):
            for name, run in contestants.items():
                rates[name].append(measure(run))
        engine.close()
    report(options, rates)


def measure(run: Callable[[], int]) -> tuple[float, float]:
    """(tokens per second, tokens per CPU second)."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = run()
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def run_engine(engine: Engine, prompts: list[list[int]], n: int, max_tokens: int) -> int:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    requests = [GenerationRequest(prompt_ids=ids, n=n, params=params) for ids in prompts]
    for request in requests:
        engine.submit(request)
    results = [request.future.result(600) for request in requests]
    return sum(len(output.tokens) for result in results for output in result.outputs)


@torch.inference_mode()
def run_generate(
    served: ServedModel, prompts: list[list[int]], n: int, max_tokens: int
) -> int:
    ids = torch.tensor(prompts, device=served.device).repeat_interleave(n, dim=0)
    out = served.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
    )
    return int((out.shape[1] - ids.shape[1]) * out.shape[0])


def random_prompts(served: ServedModel, count: int, length: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(5, served.vocab_size) for _ in range(length)] for _ in range(count)]


def report(options: argparse.Namespace, rates: dict[str, list[tuple[float, float]]]) -> None:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{options.prompts} prompts x {options.n} samples, {options.prompt_tokens} + "
        f"{options.max_tokens} tokens, {options.threads} threads, load {load}"
    )
    wall = {name: statistics.median(rate[0] for rate in runs) for name, runs in rates.items()}
    cpu = {name: statistics.median(rate[1] for rate in runs) for name, runs in rates.items()}
    for name in rates:
        print(f"{name:10} {wall[name]:8.1f} tok/s {cpu[name]:8.1f} tok/CPU-s")
    print(
        f"{'ratio':10} {wall['engine'] / wall['generate']:8.2f}       "
        f"{cpu['engine'] / cpu['generate']:8.2f}"
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", help="model directory (default: a tiny random one)")
    add("--device", default="auto")
    add("--dtype", default="auto")
    add("--prompts", type=int, default=8)
    add("--n", type=int, default=8, help="samples of each prompt")
    add("--prompt-tokens", type=int, default=40)
    add("--max-tokens", type=int, default=6)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
