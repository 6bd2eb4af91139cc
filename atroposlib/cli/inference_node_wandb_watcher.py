"""inference-node-wandb-watcher: health of one node's inference servers, as metrics in wandb.

inference-node-wandb-watcher --api_addr http://HOST:8000 --tp 2 --node_num 1

It runs beside the servers of a node, on ports 9000 to 9000 + 8 // tp - 1 of this machine, and
logs ``server/server_health_<node>_<i>`` (1 or 0) to the group of the run.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import closing

import httpx

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from atroposlib.trackers import Run, Tracker, open_tracker
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, TRACKERS, CommandParser, whole

NAME = "inference-node-wandb-watcher"
GPUS_OF_A_NODE = 8
FIRST_PORT = 9000  # of SLURM.md
INTERVAL_S = 60.0
RETRY_S = 1.0
ANSWER_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until interrupted, or until the rollout API was absent for 10 minutes (status 1)."""
    parser = CommandParser(prog=NAME, description=__doc__, variables=(API_TOKEN, TRACKERS))
    add = parser.add_argument
    add("--api_addr", required=True, help="rollout API, http://HOST:PORT")
    tp_sizes = whole(1, GPUS_OF_A_NODE)
    add("--tp", type=tp_sizes, required=True, help="GPUS of one server (tensor parallel)")
    add("--node_num", type=whole(0), required=True, help="number of this node, in the names")
    options = parser.parse_args(argv)
    logs.configure(NAME, options.log_format, options.log_level)
    servers = range(GPUS_OF_A_NODE // options.tp)
    urls = [f"http://localhost:{FIRST_PORT + i}" for i in servers]
    try:
        with closing(RolloutClient(options.api_addr)) as client:
            with closing(open_tracker("wandb", run_of(client, options.node_num))) as tracker:
                watch(client, tracker, options.node_num, urls)
    except AtroposError as error:
        logs.report(NAME, error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def run_of(client: RolloutClient, node: int) -> Run:
    """The wandb run of this node, in the project and group of the trainer; waits for one."""
    log.info("waits for a trainer that names a wandb project")
    while not (info := client.wandb_info()).get("project"):
        time.sleep(RETRY_S)
    return Run(name=f"inf_node_{node}", project=info["project"], group=info["group"])


def watch(client: RolloutClient, tracker: Tracker, node: int, urls: Sequence[str]) -> None:
    """Log the health of all servers every minute in which the trainer's step advanced."""
    logged = -1
    with httpx.Client(timeout=ANSWER_TIMEOUT_S, trust_env=False) as http:
        while True:
            step = client.status().current_step
            if step > logged:
                tracker.log(health_metrics(http, node, urls), logged := step)
            time.sleep(INTERVAL_S)


def health_metrics(http: httpx.Client, node: int, urls: Sequence[str]) -> dict[str, int]:
    """1 for each server that answers, else 0."""
    return {
        f"server/server_health_{node}_{i}": int(is_healthy(http, url))
        for i, url in enumerate(urls)
    }


def is_healthy(http: httpx.Client, url: str) -> bool:
    """Whether a server generates (SGLang, the original's server), or has no such route but lives."""
    try:
        reply = http.get(f"{url}/health_generate")
        if reply.status_code == 404:  # vLLM, atropos-infer
            reply = http.get(f"{url}/health")
    except httpx.HTTPError:
        return False
    return reply.is_success


if __name__ == "__main__":
    sys.exit(main())
