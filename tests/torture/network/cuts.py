"""A run whose parts are on nodes of a bad network, while that network is cut between them.

Real processes, each on its own node: API with PostgreSQL on another node, environment,
trainer that publishes after each step, local inference server. All links have delay and loss.

    python -m tests.torture.network.cuts 30 [PAIR ...]
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.integration.test_lost_nodes import Nodes, cluster_plan
from tests.postgres_server import PostgresServer, running_server
from tests.torture.figures import Figures, fast_folder
from tests.torture.kills.env_world import WITHIN_S
from tests.torture.network.link import SUBNET, Network

PARTS = ("api", "environment", "trainer", "inference", "database")
PAIRS = {
    "environment-API": ("environment", "api"),
    "trainer-API": ("trainer", "api"),
    "environment-engine": ("environment", "inference"),
    "trainer-engine": ("trainer", "inference"),
    "API-PostgreSQL": ("api", "database"),
}
VANISHED = {"API's node vanished": "api", "engine's node vanished": "inference"}
SCENARIOS = (*PAIRS, *VANISHED)
SHORT_S = 10.0  # cuts of CI are shorter, on a machine where nothing is timed
SHORT = ("environment-API", "trainer-engine", "API-PostgreSQL", "API's node vanished")
DELAY_S, LOSS = 0.02, 0.01
BOUND_S = 60.0  # from the end of a cut, or from the health elsewhere, to the next step
SCHEMA = "run"


class Cluster(Nodes):
    """The nodes of a run; a part may move to a spare node."""

    def __init__(self, folder: Path, network: Network, database: PostgresServer) -> None:
        self.network, self.database, self.folder = network, database, folder
        self.place = {part: part for part in PARTS}
        url = f"postgresql://atropos@{network.address('database')}/postgres?schema={SCHEMA}"
        plan = cluster_plan(folder, f'api.args=["--store", "{url}"]', servers=1)
        saved = {"data_path_to_save_groups": str(folder / "groups.jsonl")}
        plan.environments[0].config["env"].update(saved)
        super().__init__(plan)

    def address(self, role: str) -> str:
        return self.network.address(self.place[role])

    def start(self, role: str, index: int = 0) -> None:
        with self.network.inside(self.place[role]):
            super().start(role, index)

    def lose_for_good(self, part: str) -> None:
        """Its node is gone without a word, and its process serves on another node."""
        self.network.cut_off(self.place[part])
        self.lose(f"{part}-0")
        self.place[part] = f"other {part}"
        ready = "serving model" if part == "inference" else "rollout API on"
        before = self.log(f"{part}-0").count(ready)
        self.start(part)
        self.until("its start", lambda: self.log(f"{part}-0").count(ready) > before)

    def finished(self) -> list[str]:
        """The keys of all groups that the environment ever finished."""
        found = [key for file in self.folder.glob("groups*.jsonl") for key in keys_in(file)]
        return sorted(found)

    def stored(self) -> set[str]:
        """The keys that the API acknowledged."""
        address = self.database.url().split("&schema")[0]
        with psycopg.connect(address) as own:
            rows = own.execute(f"SELECT key FROM {SCHEMA}.groups WHERE key IS NOT NULL")
            return {str(key) for (key,) in rows}


def keys_in(file: Path) -> list[str]:
    lines = file.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["idempotency_key"] for line in lines]


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    spare = (f"other {part}" for part in VANISHED.values())
    with contextlib.closing(Network(*PARTS, *spare, delay_s=DELAY_S, loss=LOSS)) as network:
        with network.inside("database"), running_server(f"{SUBNET}.0/24") as server:
            cluster = Cluster(folder, network, server)
            try:
                for role in ("api", "inference", "trainer", "environment"):
                    cluster.start(role)
                cluster.until("the second step", lambda: len(cluster.rows()) >= 2)
                yield cluster
            finally:
                cluster.close()


def cut_campaign(cut_s: float, chosen: Sequence[str] = ()) -> Figures:
    """Cut each pair for so long; AssertionError at a broken promise, otherwise the figures."""
    figures = Figures({"s of each cut": cut_s})
    scenarios = chosen or (SHORT if cut_s < SHORT_S else SCENARIOS)
    with fast_folder() as folder, running(folder) as cluster:
        for name in scenarios:
            done = len(cluster.rows())
            if name in PAIRS:
                cluster.network.cut(*PAIRS[name])
                time.sleep(cut_s)
                figures[f"steps in a cut {name}"] = len(cluster.rows()) - done
                cluster.network.heal()
            else:
                cluster.lose_for_good(VANISHED[name])
            figures[f"s to a step after {name}"] = cluster.more_steps()
            cluster.network.heal()
        environment = cluster.running.pop("environment-0")
        environment.send_signal(signal.SIGTERM)
        assert environment.wait(WITHIN_S) == 0, cluster.log("environment-0")[-3000:]
        return audit(cluster, figures)


def audit(cluster: Cluster, figures: Figures) -> Figures:
    cluster.lose("trainer-0")  # nothing is claimed from here on
    rows, finished = cluster.rows(), cluster.finished()
    trained = Counter(key for row in rows for key in row["keys"])
    lost = set(finished) - trained.keys() - cluster.stored()
    figures["steps"], figures["groups"] = len(rows), len(trained)
    broken = {
        "lost": len(lost),
        "trained twice": sum(count - 1 for count in trained.values()),
        "ghosts": len(trained.keys() - set(finished)),
        "skipped steps": sum(row["step"] != n for n, row in enumerate(rows, 1)),
    }
    figures.update(broken)
    waits = [s for name, s in figures.items() if name.startswith("s to a step")]
    late = figures["s of each cut"] >= SHORT_S and max(waits, default=0.0) > BOUND_S
    assert not any(broken.values()) and not late, figures.line("cuts")
    return figures


if __name__ == "__main__":
    print(cut_campaign(float(sys.argv[1]), sys.argv[2:]).line("cuts"))
