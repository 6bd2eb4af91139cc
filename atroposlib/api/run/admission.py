"""Admission control: limits rollouts in flight so that none exceeds ``max_staleness``."""

from __future__ import annotations

from collections.abc import Mapping

from atroposlib.api.common.records import AdmissionGrant
from atroposlib.api.common.run_record import EnvEntry
from atroposlib.api.decisions.allocation import budget
from atroposlib.api.decisions.steering import pauses
from atroposlib.api.guards.auth import own_id
from atroposlib.api.guards.tokens import Caller
from atroposlib.api.run.context import ServiceContext
from atroposlib.api.run.run_cache import require_plain
from atroposlib.api.store.sql.run import Admit, Admitted, Release
from atroposlib.wire import AdmissionReply, AdmissionRequest, ids


class AdmissionControl:
    """Requests of the environments to begin rollouts."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def admit(
        self, asked: AdmissionRequest, entry: EnvEntry, caller: Caller | None = None
    ) -> AdmissionReply:
        """How many rollouts of the environment ``entry`` may begin."""
        context = self._context
        trainer, run = context.run.registration, context.run
        pause = pauses(run, [entry])
        admission_id = asked.admission_id or ids.source().hex
        require_plain("admission_id", admission_id)
        now = context.clock()
        wanted = AdmissionGrant(
            own_id(caller, admission_id), entry.env_id, asked.sequences, now + asked.ttl_s
        )
        allowed = budget(
            trainer.batch_size,
            trainer.max_staleness,
            run.policy_version,
            run.base_version,
            run.admission_base,
        )
        if pause is not None:
            return AdmissionReply(
                admission_id=admission_id,
                granted=0,
                blocked_reason=pause,
                credit_bytes=await context.queue_stats.credit_bytes(),
            )
        unmet = await context.queue_stats.unmet_minima(run, context.live(), now)
        own = unmet.pop(entry.env_id, 0)
        allowed -= sum(unmet.values())
        granted = await self._admit(wanted, allowed, now)
        if not granted and (relief := await self._relief(own, unmet)) is not None:
            granted = await self._admit(wanted, relief, now)
        if not granted and await context.free_absent():
            granted = await self._admit(wanted, allowed, now)
        reason = None
        if granted:
            context.events.publish("admission", env=entry.env_id, sequences=granted)
        else:
            reason = (
                f"rollouts that begin now would be trained on more than {trainer.max_staleness} "
                "policy versions later: waiting for the trainer"
            )
        return AdmissionReply(
            admission_id=admission_id,
            granted=granted,
            blocked_reason=reason,
            credit_bytes=await context.queue_stats.credit_bytes(),
        )

    async def _admit(self, wanted: AdmissionGrant, allowed: int, now: float) -> int:
        context = self._context
        return await context.threads.reads.run(context.store.do, Admit(wanted, allowed, now))

    async def _relief(self, own: int, others: Mapping[int, int]) -> int | None:
        """Extra budget of a batch that breaks a deadlock, or None if there is no deadlock.

        Deadlock: the queued groups form no batch, no batch is in training, and no rollout
        is admitted. Where minima are unmet, ``own`` sequences of the environment's and those of
        ``others``, only rollouts of these environments end it: the others get no relief, or they
        take each one first, and their rollouts do not count.
        """
        context = self._context
        size = context.run.registration.batch_size
        stats = await context.queue_stats.read()
        if stats.batches_open or (await context.obstacles())[0] is None:
            return None
        admitted = await context.threads.reads.run(
            context.store.ask, Admitted(context.clock())
        )
        deadlock = own > 0 if own or others else not admitted
        return stats.sequences_accepted + sum(admitted.values()) + size if deadlock else None

    async def release(self, admission_id: str, caller: Caller | None = None) -> bool:
        """End an admission. False if it is unknown or has expired."""
        require_plain("admission_id", admission_id)
        context, release = self._context, Release(own_id(caller, admission_id))
        return await context.threads.reads.run(context.store.do, release)
