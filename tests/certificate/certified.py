"""A run whose environment and sessions seal what they send."""

from __future__ import annotations

from typing import Any

from atroposlib.wire.binary import pack_columns
from tests.api.harness import ENV, Api
from tests.certificate.rows import SOURCE, sealed_group

BINARY = {"content-type": "application/x-safetensors"}
SEALING = ENV | {"source": {"digest": SOURCE}}


async def post_sealed(api: Api, env_id: int, key: str, **changes: Any) -> Any:
    """The reply to a post of a sealed group."""
    columns = sealed_group(**changes, idempotency_key=key).as_sent(env_id)
    return await api.http.post("/scored_data", content=pack_columns(columns), headers=BINARY)


async def trained_run(api: Api, groups: int = 1, **trainer: Any) -> None:
    """Train on a batch of sealed groups at version 5 of the trainer's first life."""
    size = {"batch_size": 2 * groups, "vocab_size": 100, "starting_step": 5}
    more = {"commits": True, "life": "a", **size, **trainer}
    [env_id] = await api.started(envs=[SEALING], **more)
    for number in range(groups):
        reply = await post_sealed(api, env_id, f"k{number}", incarnation=1)
        assert reply.status_code == 200, reply.text
    generation = api.service.context.view.generation
    claimed = await api.claim(generation)
    await api.ack(claimed, generation)
    values = {"version": 4, "prefix_cache_tokens": 8}
    await api.post("/steps", {"role": "trainer", "step": 4, "values": values})
    await api.post("/batches/1/commit", {"generation": generation})
    api.service.context.indexer.flush()
