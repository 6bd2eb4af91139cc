"""Comparison of the logprobs of the inference servers with those of the trainer.

Every server is checked after each publish and at the start, by comparing logprobs of
the same tokens. Every batch is checked at no cost, because its tokens carry the
sampler's logprobs. Without the check a stale output head, or old weights on half the
fleet, looks like a learning rate that does not work.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from typing import Any

from atroposlib.errors import AtroposError, StaleWeights
from example_trainer.data.rows import Row, newest_version, unsampled_row
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.weights.engines import InferenceServer, ServerGone
from example_trainer.weights.fleet import Fleet
from example_trainer.weights.mismatch import (
    LIKELY,
    Mismatch,
    about_temperature,
    about_truncation,
    compare,
    explain_mismatch,
    sampled_temperature,
)
from example_trainer.weights.publisher import Publisher

logger = logging.getLogger(__name__)

# Only characters that every tokenizer has, a character-level one included.
PROBE_TEXT = "what is 12 + 7? the answer is 19. and 3 - 2 = 1, as anyone can see."
PROBE_TEMPERATURE = 0.5
PROBE_SAMPLES = 6
DRIFT_NATS = 0.03  # mean distance of older tokens below which no temperature is looked for
SAMPLED_LIKELY = (
    "First compare the temperature at which the environment samples with the one in its rows"
    f" (sampling, else overrides, generation_params, group_overrides, else 1). {LIKELY}"
)
UNSCALED = (
    "They are the logprobs before the temperature: start vLLM with --logprobs-mode"
    " processed_logprobs, SGLang without RETURN_ORIGINAL_LOGPROB."
)


def choose_rows(rows: Sequence[Row], count: int) -> list[list[int]]:
    """Choose distinct sequences for a check: one per group first, longer ones first."""
    distinct = {tuple(row.tokens): row for row in rows if len(row.tokens) > 1}
    seen: dict[str, int] = {}
    ranked: list[tuple[int, int, list[int]]] = []
    for row in sorted(distinct.values(), key=lambda row: -len(row.tokens)):
        seen[row.group] = seen.get(row.group, 0) + 1
        ranked.append((seen[row.group], len(ranked), row.tokens))
    return [tokens for _, _, tokens in sorted(ranked)[:count]]


def check_servers(
    policy: Policy,
    engines: Sequence[InferenceServer],
    sequences: Sequence[list[int]],
    version: int | None,
    tolerance: float,
    fleet: Fleet | None = None,
) -> Mismatch:
    """Compare the logprobs of the sequences on every server with the trainer's.

    Collective: every rank scores; rank 0 requests the logprobs of the servers. A server that
    gives no answer, or names another version because it restarted, is left out of ``fleet``.

    Raises:
        StaleWeights: with the numbers, the versions, why (as far as it can be found out)
            and what to do.
        InferenceUnavailable: a server does not answer.
    """
    ours = policy.logprobs_of(sequences)

    def ask() -> dict[str, Any]:
        return _ask_all(engines, sequences, ours, version, tolerance, fleet)

    asked = run_on_rank0(policy.world, ask)
    if asked["wrong"] is None:
        return Mismatch(**asked["worst"])
    server = asked["wrong"]
    causes = explain_mismatch(policy, sequences, server, version)
    found = Mismatch(**server["found"])
    here = "initial weights" if version is None else f"version {version}"
    raise StaleWeights(
        f"{server['url']} (version {server['version']!r}) and the trainer ({here})"
        f" disagree on {len(sequences)} sequences: {found}, tolerance {tolerance:g}."
        f" Nothing was acked. {' '.join(causes)}"
    )


def _ask_all(
    engines: Sequence[InferenceServer],
    sequences: Sequence[list[int]],
    ours: Sequence[Sequence[float]],
    version: int | None,
    tolerance: float,
    fleet: Fleet | None,
) -> dict[str, Any]:
    """Return the worst mismatch of all servers, and the details of the first wrong server."""
    worst = Mismatch()
    for engine in engines:
        try:
            with ThreadPoolExecutor(len(sequences) or 1) as pool:  # one batch for the server
                theirs = list(pool.map(engine.score, sequences))
            if fleet is not None and engine.version() != str(version):
                raise ServerGone("restarted with other weights")
        except ServerGone as gone:
            if fleet is None:
                raise
            fleet.leave_out([(engine.url, gone)])
            continue
        found = sum(map(compare, ours, theirs, repeat(tolerance)), Mismatch())
        if not found.is_rounding:
            wrong = {
                "url": engine.url,
                "version": engine.version(),
                "dtype": engine.dtype(),
                "stale_head": engine.wants_untied_head,
                "found": asdict(found),
                "theirs": theirs,
                "tolerance": tolerance,
            }
            return {"worst": asdict(found), "wrong": wrong}
        worst = max(worst, found, key=lambda mismatch: mismatch.max)
    return {"worst": asdict(worst), "wrong": None}


def check_published(
    policy: Policy,
    publisher: Publisher,
    sequences: Sequence[list[int]],
    version: int,
    tolerance: float,
) -> dict[str, float]:
    """Check every server after a publish; metrics in nats, none without sequences. Collective.

    Raises:
        StaleWeights: a server and the trainer disagree; all servers were paused again.
    """
    try:
        fleet = publisher.fleet
        found = check_servers(policy, fleet.present, sequences, version, tolerance, fleet)
    except StaleWeights:
        publisher.fleet.pause_all()
        raise
    if not sequences:
        return {}
    return {"publish_mismatch_mean": found.mean, "publish_mismatch_max": found.max}


def check_start(policy: Policy, publisher: Publisher, tolerance: float) -> Mismatch:
    """Reject servers with another model, tokenizer or temperature before training.

    Repeated if a server restarts meanwhile.

    Raises:
        StaleWeights: a server tokenizes or scores a sentence differently, or reports
            logprobs of another distribution than the one it samples from.
    """
    while True:
        try:
            return check_engines(policy, publisher.fleet.present, tolerance)
        except AtroposError:  # what it is differs between ranks
            if not run_on_rank0(policy.world, publisher.lost_servers):
                raise


def check_engines(
    policy: Policy, engines: Sequence[InferenceServer], tolerance: float
) -> Mismatch:
    ids: list[int] = policy.tokenizer(PROBE_TEXT)["input_ids"]
    run_on_rank0(policy.world, lambda: _check_tokenizers(engines, ids))
    found = check_servers(policy, engines, [ids], None, tolerance)
    check_temperature(policy, engines, ids, tolerance)
    return found


def _check_tokenizers(engines: Sequence[InferenceServer], ids: list[int]) -> None:
    for engine in engines:
        if (theirs := engine.token_ids(PROBE_TEXT)) != ids:
            raise StaleWeights(
                f"{engine.url} has another tokenizer than the trainer: the same sentence is"
                f" {len(theirs)} tokens there and {len(ids)} here. Start server and trainer"
                " with the same model."
            )


def check_temperature(
    policy: Policy, engines: Sequence[InferenceServer], prompt: list[int], tolerance: float
) -> None:
    """Check that logprobs of tokens sampled at a temperature other than 1 include it.

    The ratio of trainer to sampler is 1 for equal weights only when both divide by the
    temperature; engines differ in whether they do by default.
    """

    def sample() -> list[Any]:
        return [[e.url, *e.sample(prompt, PROBE_SAMPLES, PROBE_TEMPERATURE)] for e in engines]

    for url, tokens, theirs in run_on_rank0(policy.world, sample):
        if not tokens:
            continue  # the sequence ended with its first token
        by_temperature = {}
        for temperature in (PROBE_TEMPERATURE, 1.0):
            row = unsampled_row(prompt + tokens, "probe")
            row = replace(row, temperatures=[temperature] * len(row.labels))
            (ours,) = policy.trained_logprobs([row])
            by_temperature[temperature] = compare(ours[-len(tokens) :], theirs, tolerance)
        found = by_temperature[PROBE_TEMPERATURE]
        if found.is_rounding:
            continue
        unscaled = by_temperature[1.0].is_rounding
        why = UNSCALED if unscaled else "They are not those of temperature 1 either."
        raise StaleWeights(
            f"{url} agrees with the trainer on a given text, but sampled at temperature"
            f" {PROBE_TEMPERATURE} its tokens come with other logprobs than the trainer's at"
            f" that temperature: {found}, tolerance {tolerance:g}. {why}"
        )


@dataclass(frozen=True)
class SamplerCheck:
    """Comparison of the newest tokens of some rows with their sampler.

    Tokens of the weights held here have their logprobs. Of older tokens the policy has moved
    away, by an unknown distance; but it has not moved along a change of temperature.
    """

    rows: Sequence[Row]
    version: int | None  # of the tokens that are compared; None: there are none
    is_held: bool  # whether the policy has exactly the weights of that version
    tolerance: float  # nats

    @classmethod
    def of(cls, rows: Sequence[Row], state: TrainerState, tolerance: float) -> SamplerCheck:
        """``state`` is that of the policy that is about to be trained."""
        version = newest_version(rows)
        is_held = version == state.version == state.step  # else it took unpublished steps
        return cls(rows, version, is_held, tolerance)

    @property
    def metric(self) -> str:
        return "logprob_mismatch" if self.is_held else "logprob_drift"

    def require(self, policy: Policy, found: Mismatch) -> None:
        """Judge the distance of all ranks. Collective.

        Raises:
            StaleWeights: tokens of the version held here have other logprobs; or older ones have
                those of a temperature that their rows do not name.
        """
        version, tolerance = self.version, self.tolerance
        near = found.is_rounding if self.is_held else found.mean <= max(tolerance, DRIFT_NATS)
        if version is None or near:
            return
        temperature, tried = sampled_temperature(policy, self.rows, version)
        cause = "" if temperature is None else about_temperature(temperature, tried)
        if self.is_held:
            cause = cause or about_truncation(tried)
            raise StaleWeights(
                f"tokens sampled at version {version} do not have the logprobs of the trainer's"
                f" version {version}: {found}, tolerance {tolerance:g}. The batch was not"
                f" trained on and not acked. {cause}{SAMPLED_LIKELY}"
            )
        if cause and not all(row.names_temperature for row in tried):
            raise StaleWeights(
                f"tokens sampled at version {version} are {found.mean:.3g} nats per token from"
                f" the trainer's newer weights. The batch was not trained on and not acked. {cause}"
            )
        if cause:  # the row knows better: an update can resemble a temperature
            logger.info("tokens of version %d: %s", version, cause)
