"""inference-node-wandb-watcher: health of a node's inference servers, as metrics in wandb.

It runs beside the servers of a node, on ports 9000 to 9000 + 8 // tp - 1 of this machine, and
logs ``server/server_health_<node>_<i>`` (1 or 0) to the group of the run.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import NoReturn

import httpx

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from atroposlib.trackers import open_tracker
from atroposlib.trackers.services import Run, Tracker
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, TRACKERS, CommandParser, whole

NAME = "inference-node-wandb-watcher"
GPUS_OF_A_NODE, FIRST_PORT = 8, 9000  # values of SLURM.md
INTERVAL_S, RETRY_S, ANSWER_TIMEOUT_S = 60.0, 1.0, 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until interrupted, or until the rollout API was absent for 10 minutes (status 1)."""
    parser = CommandParser(prog=NAME, description=__doc__, variables=(API_TOKEN, TRACKERS))
    add, tp = parser.add_argument, whole(1, GPUS_OF_A_NODE)
    add("--api_addr", required=True, help="rollout API, http://HOST:PORT")
    add("--tp", type=tp, required=True, help="GPUs of one server (tensor parallel)")
    add("--node_num", type=whole(0), required=True, help="number of this node, in the names")
    options = parser.parse_args(argv)
    logs.configure(NAME, options.log_format, options.log_level)
    ports = range(FIRST_PORT, FIRST_PORT + GPUS_OF_A_NODE // options.tp)
    urls = [f"http://localhost:{port}" for port in ports]
    try:
        with closing(RolloutClient(options.api_addr)) as client:
            with closing(
                open_tracker("wandb", wandb_run_of(client, options.node_num))
            ) as tracker:
                watch(client, tracker, options.node_num, urls)
    except AtroposError as error:
        logs.report(NAME, error)
        return 1
    except KeyboardInterrupt:
        return 130


def wandb_run_of(client: RolloutClient, node: int) -> Run:
    """The wandb run of this node, in the project and group of the trainer; waits for a trainer."""
    logging.getLogger(__name__).info("waits for a trainer that names a wandb project")
    while not (info := client.wandb_info()).get("project"):
        time.sleep(RETRY_S)
    return Run(name=f"inf_node_{node}", project=info["project"], group=info["group"])


def watch(client: RolloutClient, tracker: Tracker, node: int, urls: Sequence[str]) -> NoReturn:
    """Log which servers are healthy, every minute in which the trainer's step advanced."""
    logged = -1
    with httpx.Client(timeout=ANSWER_TIMEOUT_S, trust_env=False) as http:
        while True:
            step = client.status().current_step
            if step > logged:
                names = [f"server/server_health_{node}_{i}" for i in range(len(urls))]
                tracker.log(
                    {n: int(is_generating(http, u)) for n, u in zip(names, urls)}, step
                )
                logged = step
            time.sleep(INTERVAL_S)


def is_generating(http: httpx.Client, url: str) -> bool:
    """Whether a server generates (SGLang, the original's server), or lives without that route."""
    try:
        reply = http.get(f"{url}/health_generate")
        if reply.status_code == 404:  # vLLM, atropos-infer
            reply = http.get(f"{url}/health")
    except httpx.HTTPError:
        return False
    return reply.is_success


if __name__ == "__main__":
    sys.exit(main())
