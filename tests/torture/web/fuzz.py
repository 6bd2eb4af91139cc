"""Hostile requests by the hundred thousand: no 5xx, no exception, flat memory."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from tests.torture.figures import MB, Figures, settled_rss_bytes
from tests.torture.web.asgi_caller import App, Reply, Request, ask
from tests.torture.web.hostile import Known, hostile

MAX_BYTES = 6_000  # small, so that a full store is part of the game
# Old environments drop data on a 4xx, so their posts are held and then answered with a retry time.
MAY_SAY_WAIT = ("/scored_data", "/scored_data_list")
# While any of this piles up per request, 80,000 of them after the warm-up pass this.
MAY_GROW = 24 * MB


def fuzz_campaign(count: int, seed: int = 0) -> Figures:
    return asyncio.run(fuzz(count, seed))


async def fuzz(count: int, seed: int = 0) -> Figures:
    """Raises AssertionError at the first answer that is not the caller's fault."""
    store = open_store("memory", max_bytes=MAX_BYTES)
    app = create_app(store, hold_s=0.0)
    rng, statuses, known = random.Random(seed), Counter[int](), Known()
    warm_rss = 0
    for i in range(count):
        if i == count // 5:
            warm_rss = settled_rss_bytes()
        request = hostile(rng, known)
        reply = await answer(app, request, i)
        statuses[reply.status] += 1
        require_fair(request, reply, i)
        if reply.status == 200 and request.method == "POST":
            known.learn(request.path, bytes(reply.body))
    grown = settled_rss_bytes() - warm_rss
    assert grown < MAY_GROW, f"{grown / MB:.1f} MB more after {count - count // 5} requests"
    store.close()
    figures = Figures({"requests": count, "5xx": 0, "MB grown": grown / MB})
    figures["answered 2xx"] = sum(n for s, n in statuses.items() if 200 <= s < 300)
    figures["refused 4xx"] = sum(n for s, n in statuses.items() if 400 <= s < 500)
    figures["told to wait"] = statuses[503]
    return figures


async def answer(app: App, request: Request, i: int) -> Reply:
    try:
        return await ask(app, request, leave_at_once=request.path.startswith("/events"))
    except (Exception, asyncio.TimeoutError) as error:
        raise AssertionError(f"request {i} broke the app: {request.brief()}") from error


def require_fair(request: Request, reply: Reply, i: int) -> None:
    told_to_wait = reply.status == 503 and request.path.partition("?")[0] in MAY_SAY_WAIT
    about = f"request {i}: {reply.status} {bytes(reply.body[:300])!r} for {request.brief()}"
    assert 200 <= reply.status < 500 or told_to_wait, about
    if 400 <= reply.status < 500 and request.method != "HEAD":
        size = len(reply.body)
        assert size < 1024, f"a refusal of {size} bytes: {request.brief()}"
