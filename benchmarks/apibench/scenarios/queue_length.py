"""Whether a long queue, or a buffer that never becomes whole, makes calls cost more."""

from __future__ import annotations

import json
from collections.abc import Callable

from apibench import servers
from apibench.calls import Client, send_all
from apibench.figures import Figure, Section, at_most, growth
from apibench.payloads import Body, Encoding, Shape, body, group
from apibench.sizes import Plan

ENVS = 4
TINY = Shape(4, 8)
_CALLS = 400
_FEWER_CALLS = 80  # calls that may cost the naive server a lot
_PER_POST = 50
_NOISE_MS = 0.2  # CPU per call; smaller growth is not seen
_METHOD = (
    "CPU of the server per call, after so many groups were queued; the last row of each kind "
    "is the cost at the longest over the cost at the shortest queue. Empty /batch: every batch "
    "waits for the minimum share of an environment that never posts (ours), or is larger than "
    "the queue (both). Buffered: groups of 9 of an environment whose size is 16, so that none "
    "ever fits; the cost is that of one more post."
)


def run(plan: Plan) -> Section:
    figures: list[Figure] = []
    lengths = plan.queue_lengths
    for what, cost, naive_too in (
        ("/status-env", _status_env_ms, True),
        ("empty /batch, larger than the queue", _too_large_ms, True),
        ("empty /batch, a minimum is not met", _blocked_ms, False),
    ):
        figures += _grown(plan, what, lengths, cost, naive_too)
    figures += _grown(plan, "POST to a buffer", plan.buffer_lengths, _buffered_ms, True)
    return Section("Cost against the length of the queue", _METHOD, tuple(figures))


def _grown(
    plan: Plan,
    what: str,
    lengths: tuple[int, ...],
    cost: Callable[[servers.Server, int], float],
    naive_too: bool,
) -> list[Figure]:
    ours, naive, figures = [], [], []
    for length in lengths:
        with servers.Server(servers.ours(source=plan.source), plan.scratch) as server:
            ours.append(cost(server, length))
        if naive_too:
            with servers.Server(servers.NAIVE, plan.scratch) as server:
                naive.append(cost(server, length))
        figures.append(
            Figure(
                what=f"{what}, {length:,} groups",
                unit="CPU ms",
                ours=(ours[-1],),
                naive=tuple(naive[-1:]),
            )
        )
    figures.append(
        Figure(
            what=f"{what}: {lengths[-1]:,} over {lengths[0]:,} groups",
            unit="times",
            ours=(growth(ours, _NOISE_MS),),
            naive=(growth(naive, _NOISE_MS),) if naive else (),
            target=at_most(1.5),
        )
    )
    return figures


def _fill(server: servers.Server, batch_size: int, length: int, minimum: bool) -> list[int]:
    """Queue ``length`` groups, of all environments in turn except that with a minimum."""
    envs = [servers.env(TINY.rows) for _ in range(ENVS)]
    if minimum:
        envs.append(servers.env(TINY.rows, minimum=0.25))
    ids = server.begin(batch_size, envs)
    many = [group(TINY, ids[i % ENVS], i) for i in range(_PER_POST)]
    send_all(
        server.port, "/scored_data_list", [body(many, Encoding.JSON)], length // _PER_POST, 1
    )
    return ids


def _per_call_ms(
    server: servers.Server, calls: int, call: Callable[[Client], object]
) -> float:
    """CPU per call, of the least disturbed quarter of the calls."""
    client = server.client()
    for _ in range(3):
        call(client)
    quarters = []
    for _ in range(4):
        before = server.usage().cpu_s
        for _ in range(calls // 4):
            call(client)
        quarters.append(server.usage().cpu_s - before)
    return 1e3 * min(quarters) / (calls // 4)


def _status_env_ms(server: servers.Server, length: int) -> float:
    ids = _fill(server, 64, length, minimum=False)
    query = json.dumps({"env_id": ids[0]}).encode()
    headers = {"content-type": "application/json"}
    return _per_call_ms(
        server, _CALLS, lambda client: client.call("GET", "/status-env", query, headers).ok()
    )


def _empty_ms(server: servers.Server) -> float:
    def ask(client: Client) -> None:
        assert client.get("/batch")["batch"] is None

    return _per_call_ms(server, _FEWER_CALLS, ask)


def _too_large_ms(server: servers.Server, length: int) -> float:
    _fill(server, 100_000, length, minimum=False)
    return _empty_ms(server)


def _blocked_ms(server: servers.Server, length: int) -> float:
    _fill(server, 64, length, minimum=True)
    return _empty_ms(server)


def _buffered_ms(server: servers.Server, length: int) -> float:
    ids = server.begin(64, [servers.env(16)])
    odd = body(group(Shape(9, 8), ids[0]), Encoding.JSON)
    send_all(server.port, "/scored_data", [odd], length, 4)

    def post(client: Client) -> None:
        client.send("/scored_data", Body(odd.data, odd.headers))

    return _per_call_ms(server, _FEWER_CALLS, post)
