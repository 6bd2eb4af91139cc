"""Certificates of posted groups at their arrival: groups that lack a claim are counted or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atroposlib.api.archive.certificates import circumstances
from atroposlib.api.archive.records import RunFacts
from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.run_record import RunRecord
from atroposlib.api.run.context import ServiceContext
from atroposlib.certificate.claims import Value, certificate
from atroposlib.errors import Uncertified
from atroposlib.wire.binary import unpack_columns

WANTING = (Value.REFUTED, Value.ABSENT)


class Certification:
    """The treatment of posted groups that the trainer registered, ``require_certificate``.

    Claims that depend on later facts, of the prefix cache, are left to ``atropos verify``.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self.counts: Counter[str] = Counter()  # groups of this process: "refused", "warned"

    async def require(self, groups: Sequence[ParsedGroup], run: RunRecord) -> None:
        """Count groups with a refuted or absent claim, or refuse them.

        Raises:
            Uncertified: the trainer registered ``refuse``; names the first claim and row.
        """
        policy = run.registration.require_certificate
        facts = RunFacts.of(run)
        names = [
            None if group.env is None else self._context.name_of(group.env) for group in groups
        ]
        problems = await self._context.threads.reads.run(_problems_of, groups, names, facts)
        wanting = [problem for problem in problems if problem is not None]
        for problem in wanting:
            self._context.metrics.uncertified.labels(problem.claim, policy).inc()
        if wanting and policy == "refuse":
            self.counts["refused"] += len(groups)
            raise wanting[0]
        if wanting:
            self.counts["warned"] += len(wanting)


def _problems_of(
    groups: Sequence[ParsedGroup], names: Sequence[str | None], run: RunFacts
) -> list[Uncertified | None]:
    """The first refuted claim of each group, else the first absent claim, else None."""
    return [_problem_of(group, name, run) for group, name in zip(groups, names)]


def _problem_of(group: ParsedGroup, name: str | None, run: RunFacts) -> Uncertified | None:
    known = circumstances(run, name, group.arrived_version, fresh=None)
    claims_G = certificate(unpack_columns(group.payload), known)
    for value in WANTING:
        for g, claims in enumerate(claims_G):
            for claim, standing in claims.items():
                if standing.value is value:
                    return Uncertified(claim, g, f"{value.value}, {standing.why}")
    return None
