"""Generated server addresses: local ports, or the nodes of a SLURM job."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import APIServerConfig, ServerBaseline

LOCAL_URLS = tuple(f"http://localhost:{port}/v1" for port in range(9004, 9008))
FIRST_NODE_PORT = 9000
GPUS_PER_NODE = 8
SCONTROL_TIMEOUT_S = 30.0
GENERATED_API_KEY = "x"  # local servers need none, but some clients require one


def node_urls(hostnames: Sequence[str], training_nodes: int, infer_tp: int) -> list[str]:
    """Servers on the nodes after the training ones: 8 // ``infer_tp`` each, from port 9000.

    Fewer than two nodes give an empty list.

    Raises:
        ConfigError: all nodes train, so that none is left for inference.
    """
    if len(hostnames) < 2:
        return []
    servers_per_node = GPUS_PER_NODE // infer_tp
    if servers_per_node == 0:
        raise ConfigError(f"INFER_TP: a node has {GPUS_PER_NODE} GPUs, fewer than {infer_tp}")
    if training_nodes >= len(hostnames):
        raise ConfigError(
            f"NUM_TRAINING_NODES: {training_nodes} of {len(hostnames)} nodes train, "
            "which leaves none for inference"
        )
    return [
        f"http://{host}:{FIRST_NODE_PORT + i}/v1"
        for host in hostnames[training_nodes:]
        for i in range(servers_per_node)
    ]


def slurm_urls(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Addresses from SLURM_JOB_NODELIST, NUM_TRAINING_NODES (1) and INFER_TP (1).

    Empty outside a SLURM job and in a job of one node.
    """
    nodelist = environ.get("SLURM_JOB_NODELIST")
    if not nodelist:
        return []
    return node_urls(
        _hostnames(nodelist),
        training_nodes=_whole_number("NUM_TRAINING_NODES", environ, least=0),
        infer_tp=_whole_number("INFER_TP", environ, least=1),
    )


def generated_configs(baseline: ServerBaseline, urls: Sequence[str]) -> list[APIServerConfig]:
    """One server per address, with every setting of ``baseline``."""
    settings = {"api_key": GENERATED_API_KEY, **baseline.model_dump()}
    return [APIServerConfig(**{**settings, "base_url": url}) for url in urls]


def _hostnames(nodelist: str) -> list[str]:
    try:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist],
            capture_output=True,
            text=True,
            check=True,
            timeout=SCONTROL_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as cause:
        raise ConfigError(
            f"SLURM_JOB_NODELIST is set, but scontrol cannot list its nodes: {cause}"
        ) from cause
    return shown.stdout.split()


def _whole_number(name: str, environ: Mapping[str, str], least: int) -> int:
    text = environ.get(name) or "1"
    if not text.isdigit() or int(text) < least:
        raise ConfigError(f"{name}: a whole number from {least}, not {text!r}")
    return int(text)
