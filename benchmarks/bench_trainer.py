"""A trainer step, packed and padded, against full logits and TRL, in the same run.

    python benchmarks/bench_trainer.py                               CPU, about 3 minutes
    python benchmarks/bench_trainer.py --groups 4 --median 200 --longest 1000 --repeats 3
    python benchmarks/bench_trainer.py --device cuda --size 0.5b,1.5b

Every contestant (see trainerbench/contestants.py) is a separate process, so that its peak
memory can be measured. It takes a short step to create kernels and optimizer state, then the
measured step, on the same random weights and the same ragged rows. Processes run in sequence;
with ``--repeats`` all run again in turn, and the fastest run of each contestant counts.

Compare the ratios contestant / ``shared``. MFU is the work of the plain rows
without padding over the time and the machine's peak, which is measured by a matrix product
(or given: ``--peak-tflops``). A prefix that is shared counts as often as rows have it, so
the MFU of ``shared`` may pass that of the machine. Loss and gradient norm are printed to
show that all take the same step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainerbench.workload import SIZES, Workload, rows_of, useful_flops

ORDER = ("shared", "packed", "padded", "full logits", "trl")


def main() -> None:
    options = parse_args()
    if options.contestant:
        load = Workload(**json.loads(options.workload))
        print(json.dumps(measure(options.contestant, load, options.peak_tflops)))
        return
    for size in options.size.split(","):
        load = workload(options, size)
        names = options.only.split(",") if options.only else list(ORDER)
        results: dict[str, dict[str, Any]] = {}
        for _ in range(options.repeats):
            for name in names:
                result = in_own_process(name, load, options.peak_tflops)
                if name not in results or result.get("s", 1e9) < results[name].get("s", 1e9):
                    results[name] = result
        report(load, results)


def workload(options: argparse.Namespace, size: str) -> Workload:
    named = {f.name: getattr(options, f.name) for f in fields(Workload) if f.name in options}
    return Workload(**{**named, "size": size})


def in_own_process(name: str, load: Workload, peak: float | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--contestant", name]
    command += ["--workload", json.dumps(asdict(load))]
    command += ["--peak-tflops", str(peak)] if peak else []
    quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **quiet}
    )
    if ran.returncode:
        lines = ran.stderr.decode().strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {ran.returncode}"}
    result: dict[str, Any] = json.loads(ran.stdout.decode().splitlines()[-1])
    return result


def measure(name: str, load: Workload, peak: float | None, steps: int = 1) -> dict[str, Any]:
    """Step time, peak memory and results of the step, in this process.

    Of several steps the fastest counts; loss and gradient norm are from the first.
    """
    import torch

    from trainerbench.contestants import CONTESTANTS

    torch.set_num_threads(load.threads)
    contestant = CONTESTANTS[name](load)
    optimizer = contestant.optimizer()
    short = replace(load, groups=1, median=load.shortest, longest=load.shortest, seed=1)
    contestant.backward(rows_of(short)[: load.rows_per_pass])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    rows = rows_of(load)
    memory = CudaMemory() if contestant.device.type == "cuda" else HostMemory()
    taken = take_steps(contestant, optimizer, rows, steps)
    seconds, cpu_seconds, *_ = min(taken)
    peak = peak * 1e12 if peak else matrix_peak(contestant.device)
    return {
        "s": seconds,
        "cpu_s": cpu_seconds,
        "peak_gb": memory.peak(),
        "start_gb": memory.start,
        "loss": taken[0].loss,
        "norm": taken[0].norm,
        "padding": contestant.padding,
        "peak_tflops": peak / 1e12,
        "mfu": useful_flops(rows, load) / seconds / peak,
    }


class Step(NamedTuple):
    """Times and results of an optimizer step."""

    seconds: float
    cpu_seconds: float
    loss: float
    norm: float  # norm of the gradient


def take_steps(contestant: Any, optimizer: Any, rows: list[Any], steps: int) -> list[Step]:
    """Optimizer steps on the same rows, timed."""
    import torch

    timed = []
    for _ in range(steps):
        wall, cpu = time.perf_counter(), time.process_time()
        loss = contestant.backward(rows)
        gradients = [p.grad for p in contestant.model.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if contestant.device.type == "cuda":
            torch.cuda.synchronize()
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        timed.append(Step(seconds, cpu_seconds, loss, norm))
    return timed


class HostMemory:
    """Peak resident memory of this process from now on, in GB."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the old peak
        self.start = self.peak()

    def peak(self) -> float:
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9


class CudaMemory:
    """Peak memory of tensors on the device from now on, in GB."""

    def __init__(self) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.start = self.peak()

    def peak(self) -> float:
        import torch

        return torch.cuda.max_memory_allocated() / 1e9


def matrix_peak(device: Any) -> float:
    """FLOP/s of a large matrix product, the best of several."""
    import torch

    on_cuda = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_cuda else (2048, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        if on_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        torch.mm(a, b)
        if on_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def report(load: Workload, results: dict[str, dict[str, Any]]) -> None:
    rows = rows_of(load)
    tokens = sum(len(row.tokens) for row in rows)
    trained = sum(len(row.trained) for row in rows)
    average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"\n{load.size} on {load.device}: {len(rows)} rows in groups of {load.group_size},"
        f" {tokens} tokens, {trained} trained, {load.prompt} of a prompt; passes of"
        f" {load.rows_per_pass} rows or {load.budget} tokens; load {average}\n"
    )
    head = ["step", "s", "x", "CPU s", "tokens/s", "MFU", "padding", "peak GB", "of the step"]
    head += ["x", "loss", "grad norm"]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    base = results.get("shared", next(iter(results.values())))
    for name, result in results.items():
        if "failed" in result:
            print(f"| {name} | {result['failed']} |" + " |" * (len(head) - 2))
            continue
        used, least = (
            result["peak_gb"] - result["start_gb"],
            base["peak_gb"] - base["start_gb"],
        )
        cells = [
            name,
            f"{result['s']:.2f}",
            f"{result['s'] / base['s']:.2f}",
            f"{result['cpu_s']:.1f}",
            f"{tokens / result['s']:,.0f}",
            f"{result['mfu']:.0%}",
            f"{result['padding']:.1%}",
            f"{result['peak_gb']:.2f}",
            f"{used:.2f}",
            f"{used / least:.2f}",
            f"{result['loss']:.5f}",
            f"{result['norm']:.5f}",
        ]
        print("| " + " | ".join(cells) + " |")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, cuda or cuda:1")
    add("--size", default=None, help=f"one or more of {', '.join(SIZES)}, comma between")
    add("--groups", type=int, default=2)
    add("--group-size", type=int, default=8, help="rows that share a prompt")
    add("--prompt", type=int, default=64, help="tokens of a prompt")
    add("--median", type=int, default=50, help="tokens of a completion")
    add("--shortest", type=int, default=16)
    add("--longest", type=int, default=240)
    add("--rows-per-pass", type=int, default=8)
    add("--threads", type=int, default=os.cpu_count())
    add("--checkpointing", action="store_true", help="recompute activations (all of them)")
    add("--peak-tflops", type=float, help="of the machine (default: measured)")
    add("--repeats", type=int, default=1)
    add("--only", help=f"some of: {', '.join(ORDER)}")
    add("--contestant", help=argparse.SUPPRESS)
    add("--workload", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size is None:
        options.size = "135m" if options.device == "cpu" else "0.5b,1.5b"
    return options


if __name__ == "__main__":
    main()
