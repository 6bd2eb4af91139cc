"""A step of groups with pictures: whether small requests wait, and what the server takes."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass

import numpy as np

from apibench import servers
from apibench.calls import Prober, send_all
from apibench.figures import Better, Figure, Section, at_most
from apibench.flow import POSTERS, Flow
from apibench.payloads import Body, Encoding, Shape, body, group
from apibench.processes import warm_page_cache
from apibench.sizes import Plan
from atroposlib.utils.metrics import percentile
from atroposlib.wire.images import with_references

SHAPE = Shape(8, 1024)
PICTURES = 4  # a group's; every row has all
PICTURE_BYTES = 10**6  # a PNG, before base64
WHOLE_BYTES = SHAPE.rows * PICTURES * PICTURE_BYTES * 4 // 3  # base64 of all rows of a group
POOL = 4  # different groups, posted in turn
PROBE_S = 0.05  # between two calls
IDLE_S = 5.0
MACHINE_BYTES = 2 * 10**9
BATCH_BYTES = 300 * 10**6  # about
AHEAD = 3  # batches posted and not yet taken, at most
_METHOD = (
    f"{POSTERS} clients post groups of {SHAPE} tokens with {PICTURES} pictures of "
    f"{PICTURE_BYTES / 1e6:.0f} MB in base64, which all rows of a group share, at most {AHEAD} batches "
    "ahead of a trainer that claims and acks them in binary. A step is counted as if each row had its "
    "pictures; they are sent so, or once per group. Two other processes ask GET /status and POST "
    f"/status-env every {PROBE_S * 1e3:.0f} ms; idle is the same before the first post. All processes "
    "share the cores. Machine: the same posts, at most 2 GB, to a bare HTTP server that drops them, "
    "and GET of 1 kB."
)


@dataclass(frozen=True)
class Form:
    """The way in which the groups of a step are sent."""

    name: str
    encoding: Encoding
    once: bool  # a picture is sent once per group


FORMS = (
    Form("whole, JSON", Encoding.JSON, once=False),
    Form("once, JSON", Encoding.JSON, once=True),
    Form("once, binary", Encoding.BINARY, once=True),
)


def run(plan: Plan) -> Section:
    figures = [figure for form in FORMS for figure in _measure(plan, form)]
    return Section("A step of pictures", _METHOD, tuple(figures))


def _measure(plan: Plan, form: Form) -> list[Figure]:
    # Gigabytes of the form before are written to the disk first, and not while this one is measured.
    os.sync()
    kind = servers.ours(source=plan.source)
    with servers.Server(kind, plan.scratch) as server:
        bodies = _bodies(form)
        size = len(bodies[0].data)
        per_batch = max(1, BATCH_BYTES // size)
        batches = max(2, round(plan.pictures_gb * 1e9 / (WHOLE_BYTES * per_batch)))
        [env_id] = server.begin(per_batch * SHAPE.rows, [servers.env(SHAPE.rows)])
        flow = Flow(
            server.port,
            bodies,
            batches,
            server.generation,
            frames=True,
            groups_per_batch=per_batch,
            groups_ahead=per_batch * AHEAD,
            room_bytes=per_batch * size + 2**20,
        )
        warm_page_cache(plan.scratch)
        asked = json.dumps({"env_id": env_id}).encode()
        status = Prober(server.port, pause_s=PROBE_S)
        of_env = Prober(server.port, "/status-env", asked, PROBE_S)
        with status, of_env:
            time.sleep(IDLE_S)
            cpu, began = server.usage().cpu_s, time.perf_counter()
            flow.run()
            ended = time.perf_counter()
        cpu, peak = server.usage().cpu_s - cpu, server.peak_rss_bytes()
    wall, groups = ended - began, batches * per_batch
    more = Better.MORE
    figures = [
        Figure(
            f"pictures of all rows, {form.name}",
            "GB",
            (groups * WHOLE_BYTES / 1e9,),
            better=more,
        ),
        Figure(f"sent, {form.name}", "GB", (flow.sent_bytes / 1e9,), better=more),
        Figure(f"groups posted and claimed, {form.name}", "/s", (groups / wall,), better=more),
        Figure(f"sent, {form.name}", "MB/s", (flow.sent_bytes / wall / 1e6,), better=more),
        Figure(f"claimed, {form.name}", "MB/s", (flow.taken_bytes / wall / 1e6,), better=more),
        Figure(f"median post, {form.name}", "ms", (1e3 * percentile(flow.post_s, 0.5),)),
        Figure(f"CPU, {form.name}", "s/GB sent", (cpu / flow.sent_bytes * 1e9,)),
        Figure(f"most memory, {form.name}", "MB", (peak / 1e6,)),
    ]
    machine = _machine_s(plan, bodies, min(groups, MACHINE_BYTES // size))
    for prober, name in ((status, "GET /status"), (of_env, "POST /status-env")):
        figures += _latencies(f"{name}, idle", prober.during(began - IDLE_S, began))
        figures += _latencies(f"{name}, {form.name}", prober.during(began, ended), machine)
    return figures


def _machine_s(plan: Plan, bodies: list[Body], count: int) -> list[float]:
    """Seconds of each small request to a bare server that receives the same posts."""
    with servers.Server(servers.LIMIT, plan.scratch) as server:
        with Prober(server.port, "/?1000", pause_s=PROBE_S) as prober:
            began = time.perf_counter()
            send_all(server.port, "/", bodies, max(POSTERS, count), POSTERS)
            ended = time.perf_counter()
        return prober.during(began, ended)


def _latencies(
    name: str, seconds: list[float], machine_s: list[float] | None = None
) -> list[Figure]:
    """Median, 99th percentile and maximum; bounded where the server is busy, then the machine's."""
    figures = []
    for what, share in (("median", 0.5), ("99th percentile", 0.99), ("slowest", 1.0)):
        limit = () if machine_s is None else (1e3 * percentile(machine_s, share),)
        bound = at_most(100) if machine_s is not None and share == 1 else None
        ours = (1e3 * percentile(seconds, share),)
        figures.append(Figure(f"{what} {name}", "ms", ours, limit=limit, target=bound))
    return figures


def _bodies(form: Form) -> list[Body]:
    """Groups whose pictures are random bytes, which no compression shortens, as in a PNG."""
    bodies = []
    for seed in range(POOL):
        rng = np.random.default_rng(seed)
        urls = [
            "data:image/png;base64," + base64.b64encode(rng.bytes(PICTURE_BYTES)).decode()
            for _ in range(PICTURES)
        ]
        images = [urls] * SHAPE.rows
        images = with_references(images) if form.once else images
        made = group(SHAPE, 0, seed) | {"images": images}
        bodies.append(body(made, form.encoding))
    return bodies
