"""AReaL's allocation strings: sglang:d4t2+fsdp:d8 -> servers and ranks of the trainer. Pure.

d is the data, t the tensor, p the pipeline, c the context, e the expert degree; d t p c GPUs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ConfigError

SERVERS = ("sglang", "vllm", "local")
TRAINERS = (None, "fsdp", "megatron", "archon")
PART = re.compile(r"(?:([a-z]+)(?:\[\w+\])?[:.])?((?:[dtpce]\d+)+)")
# Of mixture models: degrees of attention, and of the experts on the same GPUs.
MIXTURE = re.compile(r"\(\s*attn[:.](\w+)\s*[|]\s*ffn[:.]\w+\s*\)")


@dataclass(frozen=True)
class Allocation:
    """Servers and trainer ranks, a GPU for each rank; None: not given."""

    engine: str | None = None
    servers: int = 1
    tensor_parallel: int = 1
    ranks: int | None = None
    gpus: int = 0  # sum over all parts
    other_degrees: str = ""  # of the trainer, besides d


def parse(text: str) -> Allocation:
    """Return what an allocation string asks for; ConfigError with the advice where it has none."""
    if mixture := MIXTURE.search(text):
        degrees = re.findall(r"[dtpc](\d+)", mixture[1])
        raise ConfigError(
            f"{text}: experts are sharded as the rest of the model, by FSDP, and have no degrees of"
            f" their own; write fsdp:d{math.prod(map(int, degrees))} for the part with attn and ffn"
        )
    if "|" in text:
        raise ConfigError(
            f"{text}: servers and trainer have each their own GPUs; write + for |"
        )
    parts: dict[str, Any] = {"gpus": 0}
    for part in filter(None, text.split("+")):
        match = PART.fullmatch(part.strip())
        sizes = dict(re.findall(r"([dtpce])(\d+)", match[2])) if match else {}
        engine = match[1] if match else ""
        beyond = engine in SERVERS and {k for k in "pce" if sizes.get(k, "1") != "1"}
        if engine not in (*SERVERS, *TRAINERS) or beyond:
            raise ConfigError(
                f"{text}: a form such as sglang:d4t2+fsdp:d8 is read (sglang, vllm or local with d"
                " and t); else set inference.engine, inference.count, inference.tensor_parallel,"
                " inference.args and trainer.nproc"
            )
        if engine in TRAINERS and sizes.get("c", "1") != "1":
            raise ConfigError(
                f"{text}: no context parallelism, because ring attention takes no packed rows; write"
                " d for c, and bound the rows of a pass with trainer.max_tokens_per_microbatch"
            )
        gpus = math.prod(int(size) for name, size in sizes.items() if name != "e")
        parts["gpus"] += gpus
        if engine in TRAINERS:
            parts["ranks"] = gpus
            others = [f"{name}{size}" for name, size in sizes.items() if name in "tpe"]
            parts["other_degrees"] = "".join(text for text in others if text[1:] != "1")
        else:
            parts |= {"engine": engine, "servers": int(sizes.get("d", 1))}
            parts["tensor_parallel"] = int(sizes.get("t", 1))
    return Allocation(**parts)


def places(
    wanted: Allocation, nodes: int | None, gpus_per_node: int | None, on_cluster: bool
) -> dict[str, Any]:
    """Return the settings of the plan. On a single machine servers have the first GPUs.

    Raises ConfigError: the GPUs do not suffice, or ranks do not fill whole nodes.
    """
    if nodes and gpus_per_node and wanted.gpus > nodes * gpus_per_node:
        raise ConfigError(
            f"{wanted.gpus} GPUs are allocated, but cluster.n_nodes x cluster.n_gpus_per_node"
            f" are {nodes * gpus_per_node}"
        )
    settings: dict[str, Any] = {}
    if wanted.engine is not None:
        settings |= {"inference.engine": wanted.engine, "inference.count": wanted.servers}
        settings["inference.tensor_parallel"] = wanted.tensor_parallel
    if wanted.ranks is None:
        return settings
    per_node = min(wanted.ranks, gpus_per_node or wanted.ranks) if on_cluster else wanted.ranks
    if wanted.ranks % per_node:
        raise ConfigError(
            f"{wanted.ranks} ranks of the trainer do not fill nodes of {per_node}"
        )
    settings |= {"trainer.nproc": per_node, "trainer.nodes": wanted.ranks // per_node}
    if not on_cluster and wanted.engine not in (None, "local"):
        served = wanted.servers * wanted.tensor_parallel
        settings["inference.first_gpu"] = 0
        settings["trainer.gpus"] = ",".join(str(served + i) for i in range(wanted.ranks))
    return settings
