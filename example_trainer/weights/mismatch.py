"""Logprob mismatch between a server and the trainer, and its diagnosis.

For sampled tokens, further temperatures are tried first. Given texts are scored without the
adapter; the version and precision that the server reports are compared. Else the message
lists likely causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from atroposlib.wire.messages import NEUTRAL_CUTS
from example_trainer.data.rows import Row, at_trained
from example_trainer.data.sampling import is_cut
from example_trainer.distributed.collectives import gather_objects
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import adapter
from example_trainer.model.model_dir import is_tied
from example_trainer.model.policy import Policy, Scores

# Below this mean it may be precision; different weights, even a step apart, moved by more
# than a bfloat16 rounds, or the check would not have failed.
ROUNDING_NATS = 0.1
# Tried on tokens of at most ``TRIED_ROWS`` rows, to find the temperature of their sampler.
TEMPERATURES = tuple(round(0.5 + 0.05 * i, 2) for i in range(21))
TRIED_ROWS = 4
# A temperature is the cause if the distance at it is at most this share of that found.
LEFT_OVER = 0.25
LIKELY = (
    "Likely causes: a server loaded other weights than the trainer's (start it with the same"
    " model and dtype); it kept its own copy of a tied output head across the reload (start"
    " vLLM with the worker extension, docs/weights.md); part of a fleet was not updated (name"
    " every server in --inference-urls); its logprobs are not those at the sampling"
    " temperature (vLLM: --logprobs-mode processed_logprobs). If the difference is rounding"
    " of low precision, raise --max-logprob-mismatch."
)


@dataclass(frozen=True)
class Mismatch:
    """Differences in nats between two sets of logprobs of the same tokens."""

    tokens: int = 0
    total: float = 0.0
    max: float = 0.0
    beyond: int = 0  # tokens farther apart than the tolerance

    @property
    def mean(self) -> float:
        return self.total / self.tokens if self.tokens else 0.0

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


def mismatch_of(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> Mismatch:
    """Compare two rows token by token. A NaN or a missing token exceeds any tolerance."""
    distances = [abs(a - b) for a, b in zip(ours, theirs)]
    distances = [d if d == d else float("inf") for d in distances]
    distances += [float("inf")] * abs(len(ours) - len(theirs))
    return Mismatch(
        tokens=len(distances),
        total=sum(distances),
        max=max(distances, default=0.0),
        beyond=sum(d > tolerance for d in distances),
    )


@torch.no_grad()
def sampled_mismatch(
    scores: Scores, behaviour: Tensor, versions: Tensor, version: int | None, tolerance: float
) -> Mismatch:
    """Distance to the sampler on tokens that ``version`` sampled; none of version None."""
    if version is None:
        return Mismatch()
    same = scores.mask & (versions == version)
    distance = (scores.logprobs - behaviour)[same].abs()
    if not len(distance):
        return Mismatch()
    return Mismatch(
        tokens=len(distance),
        total=float(distance.sum()),
        max=float(distance.max()),
        # Negated so that a NaN counts as beyond.
        beyond=int((~(distance <= tolerance)).sum()),
    )


def reduce_mismatch(mismatch: Mismatch, world: Ranks) -> Mismatch:
    """The mismatch of all ranks together, the same on each, so that all stop or none."""
    if world.size == 1:
        return mismatch
    of_ranks = gather_objects(world, asdict(mismatch))
    return sum((Mismatch(**rank) for rank in of_ranks), Mismatch())


def sampled_temperature(
    policy: Policy, rows: Sequence[Row], version: int
) -> tuple[float | None, list[Row]]:
    """The temperature that explains the logprobs of tokens of ``version``, and the rows tried.

    None if no temperature does, or the rows name it already. Collective.
    """
    places = {id(row): [v == version for v in row.comparable_versions] for row in rows}
    chosen = sorted(rows, key=lambda row: -sum(places[id(row)]))[:TRIED_ROWS]
    tried = [
        replace(r, temperatures=[t] * len(r.labels)) for t in TEMPERATURES for r in chosen
    ]
    ours_R_T = policy.trained_logprobs([*chosen, *tried])
    temperatures = []
    for first in range(0, len(ours_R_T), len(chosen)):
        apart = [
            abs(ours - theirs)
            for row, ours_T in zip(chosen, ours_R_T[first:])
            for ours, theirs, is_compared in zip(
                ours_T, at_trained(row, row.behaviour_logprobs), places[id(row)]
            )
            if is_compared
        ]
        temperatures.append(fmean(apart))
    named, *different = temperatures
    best = min(range(len(different)), key=different.__getitem__)
    return (TEMPERATURES[best] if different[best] <= LEFT_OVER * named else None), chosen


def about_truncation(rows: Sequence[Row]) -> str:
    """A sentence about tokens sampled from a part of the vocabulary; empty if none were."""
    cut = [span for row in rows for span in row.spans if is_cut(span)]
    names = sorted({f"{k} {v}" for span in cut for k, v in span.items() if k in NEUTRAL_CUTS})
    if not names:
        return ""
    return (
        f"The tokens were sampled with {', '.join(names)}, and the server may report logprobs after"
        " that, as vLLM does: sample with top_p 1, top_k -1 and min_p 0, or raise"
        " --max-logprob-mismatch. "
    )


def about_temperature(temperature: float, rows: Sequence[Row]) -> str:
    """A sentence about tokens sampled at another temperature than their rows name."""
    named = sorted({t for row in rows for t in row.trained_temperatures})
    source = "name"
    if not all(row.names_temperature for row in rows):
        source = "name none, so that it was taken for"
    return (
        f"Found: the tokens have the trainer's logprobs at temperature {temperature:g}, and their rows"
        f" {source} {', '.join(f'{t:g}' for t in named)}. Sample through managed_server of this"
        f" version, or send generation_params={{'temperature': {temperature:g}}} with the groups. "
    )


def explain_mismatch(
    policy: Policy,
    sequences: Sequence[list[int]],
    server: dict[str, Any],
    version: int | None,
) -> list[str]:
    """Return sentences about the cause and its remedy; never empty. Collective.

    Args:
        server: what it answered: ``theirs`` (logprobs of the sequences), ``found`` (the
            mismatch), ``version``, ``dtype``, ``stale_head`` (keeps a tied head), ``tolerance``,
            ``is_behind`` (holds the weights of the check before).
        version: that the trainer holds; None for initial weights.
    """
    causes = []
    if adapter.adapted_layers(policy.model):
        from peft.helpers import rescale_adapter_scale

        with rescale_adapter_scale(policy.model, 0.0):
            plain = policy.logprobs_of(sequences)
        apart = map(mismatch_of, plain, server["theirs"], repeat(server["tolerance"]))
        if not any(row.beyond for row in apart):
            causes.append(
                "The adapter is missing: it has exactly the logprobs of the model without it."
                " Requests must name the adapter (--publish-adapter-name), or use a server"
                " that merges it, or --weight-publisher disk."
            )
    if version is None and server["version"] not in (None, "None", "0"):
        causes.append(
            f"It holds version {server['version']} of an earlier run, and this run starts from"
            " the model's own weights: restart the server, or go on with that run (the same"
            " save_path)."
        )
    if version is not None and server["version"] not in (None, str(version)):
        causes.append(
            f"It names version {server['version']}, not {version}: it was not updated, or"
            " somebody else did; name every server in --inference-urls."
        )
    causes += _about_precision(policy, server)
    if server["stale_head"] and is_tied(policy):
        causes.append(
            "The output head is tied to the embedding, and this engine can keep its own copy"
            " of such a head across a reload: start vLLM with the worker extension"
            " (docs/weights.md), or from an untied copy"
            " (example_trainer.model.model_dir.untied_copy) and pass --untie-published-head."
        )
    return [f"Found: {cause}" for cause in causes] + [LIKELY]


def _about_precision(policy: Policy, server: dict[str, Any]) -> list[str]:
    here = str(policy.compute_dtype).removeprefix("torch.")
    there = server["dtype"]
    if there is not None and there != here:
        return [f"It computes in {there}, the trainer in {here}: start both with one dtype."]
    precision = server["found"]
    is_small = 0 < precision["total"] < ROUNDING_NATS * precision["tokens"]
    if there is None and is_small and not server["is_behind"]:
        return [
            f"The difference is as small as rounding: compare the server's dtype with the"
            f" trainer's, which is {here}."
        ]
    return []
