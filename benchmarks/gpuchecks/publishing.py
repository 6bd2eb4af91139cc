"""Weights published, read back, compared and timed, in every way that a single GPU allows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app
from atroposlib.testing.serving import serve_in_thread
from atroposlib.utils.models import process_group
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.model import loading
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.model.state_dict import export_weights, layout
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights import make_publisher
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.engines import connect_engine
from example_trainer.weights.mismatch import mismatch_of
from example_trainer.weights.shared_memory import CudaBuffer
from example_trainer.weights.verify import check_servers
from gpuchecks.figures import Figure, Place, above, below, holds
from gpuchecks.models import weights

PUBLISHERS = ("disk", "shared_memory", "distributed")
SEQUENCES = [[6 + (start * place) % 58 for place in range(1, 61)] for start in (1, 3, 5, 7)]
# Mean nats of given texts between a server and the trainer, rounding included.
SAME_NATS = {"float32": 1e-4, "bfloat16": 0.1}
MOVED_NATS = 1.0  # each publish here moves logprobs by more
TIMEOUT_S = 30.0


def publish(place: Place) -> list[Figure]:
    """Publish changed weights twice each way; a server's logprobs follow the trainer's."""
    model = weights(place)
    figures = []
    with serve_model(model, place.device) as url:
        for seed, name in enumerate(PUBLISHERS):
            cfg = settings(place, model, weight_publisher=name)
            policy = loading.load_policy(cfg)
            engine = connect_engine(
                url, "auto", timeout_s=TIMEOUT_S, wait_s=TIMEOUT_S, on_wait=print
            )
            with closing(engine), closing(make_publisher(cfg, [engine], None)) as publisher:
                before = engine.score(SEQUENCES[0])
                for version in (1, 2):
                    change(policy, 10 * seed + version)
                    began = time.perf_counter()
                    publisher.publish(policy, TrainerState("gpu", version, version, version))
                    seconds = time.perf_counter() - began
                agreement = Agreement.of(cfg.compute_dtype)
                mismatch = check_servers(policy, [engine], SEQUENCES, version, agreement)
                moved = mismatch_of(before, engine.score(SEQUENCES[0]), 0.0).mean
            size = sum(spec.bytes for spec in layout(policy, untie_head=False))
            figures += [
                below(
                    f"{name}: server against trainer, mean",
                    mismatch.mean,
                    SAME_NATS[cfg.compute_dtype],
                    " nats",
                ),
                above(f"{name}: logprobs moved, mean nats", moved, MOVED_NATS),
                Figure(
                    f"{name}: second publish",
                    f"{seconds:.2f} s, {size / 1e6:,.1f} MB",
                    f"{seconds / size * 1e9:.2f} s per GB",
                ),
            ]
    return figures


def cuda_ipc(place: Place) -> list[Figure]:
    """Another process opens the trainer's GPU memory, as a vLLM worker does, in each version."""
    model = weights(place)
    policy = loading.load_policy(settings(place, model))
    specs = layout(policy, untie_head=True)
    path = place.scratch / "bridge.json"
    buffer = CudaBuffer(specs, policy.device, path, str(model))
    equal = []
    for version in (1, 2):
        change(policy, version)
        buffer.write(export_weights(policy, untie_head=True), version)
        expected = {n: checksum(t) for n, t in export_weights(policy, untie_head=True)}
        ran = subprocess.run(
            [sys.executable, "-m", "gpuchecks.publishing", str(path)],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S * 2,
        )
        if ran.returncode:
            raise RuntimeError(f"the reading process failed: {ran.stderr[-2000:]}")
        equal.append(json.loads(ran.stdout.splitlines()[-1]) == expected)
    buffer.remove()
    return [holds("tensors read by another process, two versions", equal, "equal", all(equal))]


def nccl(place: Place) -> list[Figure]:
    """A group of a single rank by our own rendezvous: NCCL accepts one process per GPU."""
    listener = process_group.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    spec = GroupSpec("127.0.0.1", port, 1, "nccl", "gpu-check", TIMEOUT_S)
    members = process_group.join_group(process_group.host_store(listener, spec), spec, 0)
    sent = torch.randn(1 << 26, device="cuda")  # 256 MiB
    kept = sent.clone()
    process_group.wait(process_group.broadcast(members, sent), spec)
    began = time.perf_counter()
    process_group.wait(process_group.broadcast(members, sent), spec)
    seconds = time.perf_counter() - began
    same = torch.equal(sent, kept)
    members.abort()
    return [
        holds("broadcast in a group of one", same, "unchanged", same),
        Figure("second broadcast of 256 MiB", f"{seconds * 1e3:.1f} ms"),
    ]


@contextmanager
def serve_model(model: Path, device: str) -> Iterator[str]:
    """A local server on a free port, in a thread of this process; yields its URL."""
    engine = Engine(
        load_model(str(model), device=device),
        EngineLimits(),
        seed=0,
        num_threads=torch.get_num_threads(),
    )
    engine.start()
    with closing(engine), serve_in_thread(create_app(engine)) as url:
        yield url


def settings(place: Place, model: Path, **more: object) -> TrainingConfig:
    return TrainingConfig(
        model_name=str(model),
        device=place.device,
        save_path=str(place.scratch / "publishing"),
        publish_timeout_s=TIMEOUT_S,
        inference_urls=[],
        seq_len=64,
        **more,
    )


@torch.no_grad()
def change(policy: Policy, seed: int) -> None:
    """Change the weights so much that every logprob changes."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    for weight in policy.parameters():
        noise = torch.randn(weight.shape, generator=generator, device=weight.device)
        weight.add_(0.02 * noise)


def checksum(tensor: torch.Tensor) -> list[float]:
    """Sum and sum of squares in float64: equal bits give equal sums on the same device."""
    wide = tensor.detach().double()
    return [float(wide.sum()), float(wide.square().sum())]


def read(path: str) -> None:
    """Print the checksums of a bridge file's tensors; the second process of cuda_ipc."""
    from example_trainer.weights.vllm_worker import _of_cuda

    described = json.loads(Path(path).read_text(encoding="utf-8"))
    print(json.dumps({name: checksum(tensor) for name, tensor in _of_cuda(described)}))


if __name__ == "__main__":
    read(sys.argv[1])
