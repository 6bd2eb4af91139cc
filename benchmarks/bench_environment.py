"""Cost of sending for an environment, per million tokens: naive JSON, our JSON, our arrays.

    python benchmarks/bench_environment.py --rows 16 --tokens 4096

Measured from the group as ``collect_trajectories`` returned it to the bytes of the request.
Our ways include what the naive way leaves out: every number is checked before it is sent. CPU
time of this thread, the best of ``--repeats`` runs: load on the machine lengthens the wait for
a core, but hardly CPU time. Compression is for remote machines; to localhost it is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from atroposlib.client.groups import as_frames, as_json
from atroposlib.envs.rollout.filters import AcceptedGroup, FilterRules, filter_group
from atroposlib.envs.rollout.groups import with_metadata

NAIVE = "json.dumps + gzip -9"


def main() -> None:
    options = parse_args()
    group = sampled_group(options.rows, options.tokens, options.prompt_tokens)
    rules = FilterRules(group_size=options.rows)
    ways: dict[str, Callable[[], bytes]] = {
        NAIVE: lambda: gzip.compress(json.dumps(group).encode(), 9),
        "json.dumps": lambda: json.dumps(group).encode(),
        "our JSON + gzip": lambda: (
            as_json([packable_group(group, rules)], [""], compress=True).content
        ),
        "our JSON": lambda: (
            as_json([packable_group(group, rules)], [""], compress=False).content
        ),
        "arrays + zstd": lambda: (
            as_frames([packable_group(group, rules)], [""], compress=True).content
        ),
        "arrays": lambda: (
            as_frames([packable_group(group, rules)], [""], compress=False).content
        ),
    }
    ways["arrays"]()  # the modules are loaded
    tokens = options.rows * options.tokens
    print(f"{options.rows} rows x {options.tokens} tokens, {options.repeats} repeats")
    print(f"{'':22}{'CPU ms/M tok':>14}{'bytes/tok':>11}{'naive / this':>14}")
    naive_s = 0.0
    for name, way in ways.items():
        seconds, size = measure(way, 2 if name == NAIVE else options.repeats)
        naive_s = naive_s or seconds
        cpu_ms = seconds * 1e3 * 1e6 / tokens
        print(f"{name:22}{cpu_ms:14.1f}{size / tokens:11.2f}{naive_s / seconds:13.1f}x")


def packable_group(group: dict[str, Any], rules: FilterRules) -> Any:
    """A group after all that the runtime does with it before packing."""
    copy = with_metadata(group, env="bench")  # type: ignore[arg-type]
    kept = filter_group(copy, rules)
    assert isinstance(kept, AcceptedGroup), kept
    kept.trained_lengths()
    return kept.as_sent(env_id=0)


def measure(way: Callable[[], bytes], repeats: int) -> tuple[float, int]:
    """(CPU seconds, bytes) of the best run."""
    best, size = float("inf"), 0
    for _ in range(repeats):
        begun = time.thread_time()
        size = len(way())
        best = min(best, time.thread_time() - begun)
    return best, size


def sampled_group(rows: int, length: int, prompt: int) -> dict[str, Any]:
    """Zipf-distributed ids behind one shared prompt, float32 logprobs as from a server."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        return [int(i) for i in rng.zipf(1.3, count).clip(0, 150_000)]

    def logprobs(count: int) -> list[float]:
        return [float(p) for p in (-rng.exponential(1.0, count)).astype(np.float32)]

    shared, answer = ids(prompt), length - prompt
    tokens = [shared + ids(answer) for _ in range(rows)]
    return {
        "tokens": tokens,
        "masks": [[-100] * prompt + row[prompt:] for row in tokens],
        "scores": [float(g % 2) for g in range(rows)],
        "inference_logprobs": [[1.0] * prompt + logprobs(answer) for _ in tokens],
        "versions": [[-1] * prompt + [3] * answer for _ in tokens],
        "metadata": {"metrics": {"exact": 0.5}},
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", type=int, default=16, help="sequences of the group")
    add("--tokens", type=int, default=4096, help="of each sequence")
    add("--prompt-tokens", type=int, default=512)
    add("--repeats", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
