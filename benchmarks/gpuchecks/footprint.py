"""Memory that a step takes on each GPU, computed, and the largest model that fits.

Bytes of a parameter: 16 trained by AdamW in float32 (weight, gradient, two moments), 10 by
adamw_8bit (moments of a byte), 8 with the moments in main memory (optimizer_offload), 2 frozen
in bfloat16. A single GPU also has bfloat16 copies of the trained weights, which autocast makes
for a pass; shards gather a layer at a time instead. With gradient checkpointing a token leaves
its float32 residual stream at the beginning of each layer; logits exist in chunks of half a
GB, of which the backward pass has two.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainerbench.workload import Shape

GB = 1e9
LOGITS = 1.5 * GB  # chunks, and the gradient of hidden states
SPARE = 4 * GB  # CUDA context, kernels, fragments
TOKENS = 16384  # tokens of a pass
VLLM_SHARE = 0.4


@dataclass(frozen=True)
class Model:
    """A public model: parameters, hidden size, layers, vocabulary."""

    name: str
    parameters: float
    hidden: int
    layers: int
    vocabulary: int


MODELS = (
    Model("0.5B", 0.49e9, 896, 24, 151936),
    Model("1.5B", 1.54e9, 1536, 28, 151936),
    Model("3B", 3.09e9, 2048, 36, 151936),
    Model("4B", 4.02e9, 2560, 36, 151936),
    Model("7B", 7.62e9, 3584, 28, 152064),
    Model("14B", 14.8e9, 5120, 48, 152064),
    Model("24B", 23.6e9, 5120, 40, 131072),
    Model("32B", 32.8e9, 5120, 64, 152064),
)
# Name: bytes of a parameter on the GPUs, and of its copy in a pass on a single GPU.
WAYS = {
    "adamw": (16.0, 2.0),
    "adamw_8bit": (10.0, 2.0),
    "optimizer_offload": (8.0, 2.0),
    "lora": (2.0, 0.0),
    "cpu_offload": (0.0, 0.0),
}
# Bytes of a parameter in main memory, over all GPUs.
HOST_BYTES = {"optimizer_offload": 8, "cpu_offload": 16}
PLACES = (  # name, GPUs of the trainer, share of their memory
    ("1 x 80 GB", 1, 1.0),
    ("1 x 80 GB beside vLLM", 1, 1 - VLLM_SHARE),
    ("4 x 80 GB", 4, 1.0),
    ("8 x 80 GB", 8, 1.0),
)


def bytes_on_each(model: Model, way: str, gpus: int, tokens: int = TOKENS) -> float:
    """Peak of a GPU in a step of passes of ``tokens``."""
    resident, copied = WAYS[way]
    head = model.hidden * model.vocabulary
    layer = (model.parameters - head) / model.layers
    # Two gathered layers, and the root with the head, in bfloat16.
    gathered = 2 * (2 * layer + head) if gpus > 1 or way == "cpu_offload" else 0.0
    copies = copied * model.parameters if gpus == 1 else 0.0
    gradient_of_head = 4.0 * head if way != "lora" else 0.0
    activations = 4.0 * tokens * model.hidden * model.layers + 40.0 * tokens * model.hidden
    return (
        resident * model.parameters / gpus
        + copies
        + gathered
        + gradient_of_head
        + activations
        + LOGITS
        + SPARE
    )


def computed_gb(shape: Shape, way: str, tokens: int) -> float:
    """Peak in GB of a step on a single GPU, as in the table, for a shape of the benchmarks."""
    model = Model("", shape.parameters, shape.hidden, shape.layers, shape.vocabulary)
    return bytes_on_each(model, way, 1, tokens) / GB


def largest(way: str, gpus: int, share: float) -> Model | None:
    """The largest model that fits on GPUs of 80 GB, of which the trainer has a share."""
    fitting = [model for model in MODELS if bytes_on_each(model, way, gpus) <= share * 80 * GB]
    return fitting[-1] if fitting else None


def cell(way: str, gpus: int, share: float) -> str:
    """A cell of the table: the model, GB on each GPU, and what lies in main memory."""
    if way == "adamw_8bit" and gpus > 1:
        return "one GPU only"
    model = largest(way, gpus, share)
    if model is None:
        return "none"
    need = f"{bytes_on_each(model, way, gpus) / GB:.0f} GB"
    if way in HOST_BYTES:
        need += f" + {HOST_BYTES[way] * model.parameters / GB:.0f} of main memory"
    return f"{model.name} ({need})"


def table() -> str:
    """The table of docs/gpu.md."""
    lines = [f"| trainer on | {' | '.join(WAYS)} |", "| --- |" + " --- |" * len(WAYS)]
    for place, gpus, share in PLACES:
        cells = " | ".join(cell(way, gpus, share) for way in WAYS)
        lines.append(f"| {place} | {cells} |")
    return "\n".join(lines) + "\n"
