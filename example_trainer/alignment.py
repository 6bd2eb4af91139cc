"""Do the servers hold the weights that the trainer holds?

Asked of every server after each publish and at the start, by comparing logprobs of the
same tokens; and for nothing on every batch, whose tokens carry the sampler's logprobs.
Without it a server that kept an old output head, or half a fleet with old weights, looks
like a learning rate that does not work.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

from atroposlib.errors import StaleWeights
from example_trainer.data import Row
from example_trainer.model import Policy
from example_trainer.weights.engines import Engine

# A rare token may differ by more than the tolerance where low precision rounds badly, or
# where a router of experts flips; wrong weights move nearly all tokens.
MAX_SHARE_BEYOND = 0.01
# Only characters that every tokenizer knows, also one of single characters.
PROBE_TEXT = "what is 12 + 7? the answer is 19. and 3 - 2 = 1, as anyone can see."
CAUSES = (
    "Likely causes: a server loaded other weights than the trainer's (start it with the same"
    " model and dtype); it kept its own copy of a tied output head across the reload (start"
    " it from an untied copy, example_trainer.checkpoint.untied_copy, and pass"
    " --untie-published-head); part of a fleet was not updated (name every server in"
    " --inference-urls); its logprobs are not those at the sampling temperature (vLLM:"
    " --logprobs-mode processed_logprobs). If the difference is rounding of low precision,"
    " raise --max-logprob-mismatch."
)


@dataclass(frozen=True)
class Mismatch:
    """Distances in nats between two opinions about the same tokens."""

    tokens: int = 0
    total: float = 0.0
    max: float = 0.0
    beyond: int = 0  # tokens farther apart than the tolerance

    @property
    def mean(self) -> float:
        return self.total / self.tokens if self.tokens else 0.0

    @property
    def is_rounding(self) -> bool:
        return self.beyond <= MAX_SHARE_BEYOND * self.tokens

    def __add__(self, other: Mismatch) -> Mismatch:
        return Mismatch(
            self.tokens + other.tokens,
            self.total + other.total,
            max(self.max, other.max),
            self.beyond + other.beyond,
        )

    def __str__(self) -> str:
        return (
            f"{self.beyond} of {self.tokens} tokens beyond tolerance,"
            f" mean {self.mean:.3g}, max {self.max:.3g} nats"
        )


def compare(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> Mismatch:
    """Distance token by token. A NaN or a missing token counts as beyond any tolerance."""
    distances = [abs(a - b) for a, b in zip(ours, theirs)]
    distances = [d if d == d else float("inf") for d in distances]
    distances += [float("inf")] * abs(len(ours) - len(theirs))
    return Mismatch(
        tokens=len(distances),
        total=sum(distances),
        max=max(distances, default=0.0),
        beyond=sum(d > tolerance for d in distances),
    )


def choose_rows(rows: Sequence[Row], count: int) -> list[list[int]]:
    """Distinct sequences for a check: one per group first, longer ones first."""
    distinct = {tuple(row.tokens): row for row in rows if len(row.tokens) > 1}
    seen: dict[str, int] = {}
    ranked: list[tuple[int, int, list[int]]] = []
    for row in sorted(distinct.values(), key=lambda row: -len(row.tokens)):
        seen[row.group] = seen.get(row.group, 0) + 1
        ranked.append((seen[row.group], len(ranked), row.tokens))
    return [tokens for _, _, tokens in sorted(ranked)[:count]]


def check_servers(
    policy: Policy,
    engines: Sequence[Engine],
    sequences: Sequence[list[int]],
    version: int | None,
    tolerance: float,
) -> Mismatch:
    """Score the sequences on every server and here; both must agree.

    Raises:
        StaleWeights: with the numbers, the versions, likely causes and what to do.
        InferenceUnavailable: a server does not answer.
    """
    ours = policy.logprobs_of(sequences)
    worst = Mismatch()
    for engine in engines:
        with ThreadPoolExecutor(len(sequences) or 1) as pool:  # one batch for the server
            theirs = pool.map(engine.score, sequences)
        found = sum(map(compare, ours, theirs, repeat(tolerance)), Mismatch())
        if not found.is_rounding:
            here = "initial weights" if version is None else f"version {version}"
            raise StaleWeights(
                f"{engine.url} (version {engine.version()!r}) and the trainer ({here})"
                f" disagree on {len(sequences)} sequences: {found}, tolerance"
                f" {tolerance:g}. Nothing was acked. {CAUSES}"
            )
        worst = max(worst, found, key=lambda mismatch: mismatch.max)
    return worst


def check_start(policy: Policy, engines: Sequence[Engine], tolerance: float) -> Mismatch:
    """Refuse servers of another model or tokenizer before anything is trained.

    Raises:
        StaleWeights: a server tokenizes or scores a sentence differently.
    """
    ids: list[int] = policy.tokenizer(PROBE_TEXT)["input_ids"]
    for engine in engines:
        if (theirs := engine.token_ids(PROBE_TEXT)) != ids:
            raise StaleWeights(
                f"{engine.url} has another tokenizer than the trainer: the same sentence is"
                f" {len(theirs)} tokens there and {len(ids)} here. Start server and trainer"
                " with the same model."
            )
    return check_servers(policy, engines, [ids], None, tolerance)


def require_same_policy(sampled: Mismatch, version: int, tolerance: float) -> None:
    """Tokens said to be sampled at this very version must have its logprobs.

    Raises:
        StaleWeights: they do not; the step must not be taken.
    """
    if not sampled.is_rounding:
        raise StaleWeights(
            f"tokens sampled at version {version} do not have the logprobs of the trainer's"
            f" version {version}: {sampled}, tolerance {tolerance:g}. The batch was not"
            f" trained on and not acked. {CAUSES}"
        )
