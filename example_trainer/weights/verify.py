"""Comparison of the logprobs of the inference servers with the trainer's.

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
from example_trainer.weights.agreement import Agreement, Tokens
from example_trainer.weights.canary import check_prefix_caches
from example_trainer.weights.engines import InferenceServer, ServerGone
from example_trainer.weights.fleet import Fleet
from example_trainer.weights.lag import ScoredRows, lag_of
from example_trainer.weights.mismatch import (
    LIKELY,
    Mismatch,
    about_temperature,
    about_truncation,
    explain_mismatch,
    mismatch_of,
    sampled_temperature,
)
from example_trainer.weights.publisher import Publisher

logger = logging.getLogger(__name__)

# Only characters that every tokenizer has, even at character level.
SENTENCE = "what is {} + {}? the answer is {}. and {} - {} = {}, as anyone can see."
NUMBERS = (
    (12, 7, 19, 3, 2, 1),
    (2, 1, 3, 9, 7, 2),
    (9, 3, 12, 19, 7, 12),
    (1, 2, 3, 12, 11, 1),
    (7, 2, 9, 3, 1, 2),
    (2, 7, 9, 9, 2, 7),
    (21, 2, 23, 23, 2, 21),
    (11, 2, 13, 13, 2, 11),
    (12, 1, 13, 13, 1, 12),
    (1, 1, 2, 2, 1, 1),
)
PROBE_TEXTS = tuple(SENTENCE.format(*numbers) for numbers in NUMBERS)  # about 300 tokens
PROBE_TEMPERATURE = 0.5
PROBE_SAMPLES = 32
DRIFT_NATS = 0.03  # mean distance of older tokens below which no temperature is looked for
SAMPLED_LIKELY = (
    "First compare the temperature at which the environment samples with the one in its rows"
    f" (sampling, else overrides, generation_params, group_overrides, else 1). {LIKELY}"
)
SURE_OF_LAG = 3.0  # score; by chance in 1 % of checks at most
UNSCALED = (
    "They are the logprobs before the temperature: start vLLM with --logprobs-mode"
    " processed_logprobs, SGLang without RETURN_ORIGINAL_LOGPROB."
)


def choose_rows(rows: Sequence[Row], count: int) -> list[list[int]]:
    """Choose distinct sequences for a check: one per group first, longer sequences first.

    Placeholders of pictures are left out: servers score text only.
    """
    distinct = {tuple(text_tokens(row)): row for row in rows if len(text_tokens(row)) > 1}
    seen: dict[str, int] = {}
    ranked: list[tuple[int, int, list[int]]] = []
    for tokens, row in sorted(distinct.items(), key=lambda pair: -len(pair[0])):
        seen[row.group] = seen.get(row.group, 0) + 1
        ranked.append((seen[row.group], len(ranked), list(tokens)))
    return [tokens for _, _, tokens in sorted(ranked)[:count]]


def text_tokens(row: Row) -> list[int]:
    """Tokens of a row without the placeholders of its pictures."""
    if row.pictures is None:
        return row.tokens
    return [token for token in row.tokens if token not in row.pictures.token_ids]


def check_servers(
    policy: Policy,
    engines: Sequence[InferenceServer],
    sequences: Sequence[list[int]],
    version: int | None,
    agreement: Agreement,
    fleet: Fleet | None = None,
    before: ScoredRows = ScoredRows(),
) -> Mismatch:
    """Compare the logprobs of the sequences on every server with the trainer's.

    Collective: every rank scores; rank 0 requests the logprobs of the servers. A server that
    gives no answer, or names another version because it restarted, is left out of ``fleet``.

    Args:
        before: rows of the last check, compared instead: they also show a server's lag. The
            sequences are then compared by the next check.

    Raises:
        StaleWeights: with the numbers, the versions, why (as far as it can be found out)
            and what to do.
        InferenceUnavailable: a server does not answer.
    """
    compared = before.sequences or sequences
    ours = policy.logprobs_of([*before.sequences, *sequences])

    def ask() -> dict[str, Any]:
        of_compared = ours[: len(compared)]
        return _ask_all(engines, compared, of_compared, version, agreement, fleet, before)

    answers = run_on_rank0(policy.world, ask)
    if answers["wrong"] is None:
        agreement.adopt(answers["usual"])  # the same on every rank
        agreement.keep(ScoredRows(sequences, ours[len(before.sequences) :]))
        return Mismatch(**answers["worst"])
    server = answers["wrong"]
    causes = explain_mismatch(policy, compared, server, version)
    here = "initial weights" if version is None else f"version {version}"
    raise StaleWeights(
        f"{server['url']} (version {server['version']!r}) and the trainer ({here})"
        f" disagree on {len(compared)} sequences: {server['problem']}."
        f" Nothing was acked. {' '.join(causes)}"
    )


def _ask_all(
    engines: Sequence[InferenceServer],
    sequences: Sequence[list[int]],
    ours: Sequence[Sequence[float]],
    version: int | None,
    agreement: Agreement,
    fleet: Fleet | None,
    before: ScoredRows,
) -> dict[str, Any]:
    """Return the worst mismatch of all servers, and the details of the first wrong server."""
    worst = Mismatch()
    for engine in engines:
        try:
            with ThreadPoolExecutor(len(sequences) or 1) as pool:  # a batch for the server
                theirs = list(pool.map(engine.score, sequences))
            if fleet is not None and engine.version() != str(version):
                raise ServerGone("restarted with other weights")
        except ServerGone as gone:
            if fleet is None:
                raise
            fleet.leave_out([(engine.url, gone)])
            continue
        difference = sum(
            map(mismatch_of, ours, theirs, repeat(agreement.tolerance)), Mismatch()
        )
        lag = lag_of(before, ours, theirs)
        agrees = agreement.judge(difference, Tokens.GIVEN, source=engine.url)
        is_current = agreement.judge_lag(lag, engine.url)
        if not (agrees and is_current):
            problem = str(difference)
            if not agrees:
                problem += f"; at most {agreement.text(Tokens.GIVEN)}"
            if agrees or lag.score > SURE_OF_LAG:
                problem += f"; {lag}, whose weights it still holds"
            wrong = {
                "problem": problem,
                "is_behind": not is_current,
                "url": engine.url,
                "version": engine.version(),
                "dtype": engine.dtype(),
                "stale_head": engine.wants_untied_head,
                "found": asdict(difference),
                "theirs": theirs,
                "tolerance": agreement.tolerance,
            }
            return {"worst": asdict(difference), "wrong": wrong}
        worst = max(worst, difference, key=lambda mismatch: mismatch.max)
    return {"worst": asdict(worst), "wrong": None, "usual": agreement.usual}


def check_published(
    policy: Policy,
    publisher: Publisher,
    sequences: Sequence[list[int]],
    version: int,
    agreement: Agreement,
    prefixes: Sequence[list[int]] = (),
) -> dict[str, float]:
    """Check every server after a publish; metrics in nats, none without sequences. Collective.

    Args:
        sequences: compared at the next check; the servers are asked for those of the last one.
        prefixes: tokens that the servers computed with the weights before, see ``canary``.

    Raises:
        StaleWeights: a server and the trainer disagree; all servers were paused again.
    """
    metrics: dict[str, float] = {}
    before = agreement.before.first(len(sequences))
    try:
        fleet = publisher.fleet
        mismatch = check_servers(
            policy, fleet.present, sequences, version, agreement, fleet, before
        )
        if prefixes:
            metrics = check_prefix_caches(policy, fleet, prefixes, version, agreement)
    except StaleWeights:
        publisher.fleet.pause_all()
        raise
    if not sequences:
        return {}
    return {
        "publish_mismatch_mean": mismatch.mean,
        "publish_mismatch_max": mismatch.max,
        **metrics,
    }


def check_start(policy: Policy, publisher: Publisher, agreement: Agreement) -> Mismatch:
    """Reject servers with another model, tokenizer or temperature before training.

    Repeated if a server restarts meanwhile.

    Raises:
        StaleWeights: a server tokenizes or scores a sentence differently, or its
            logprobs are not of the distribution that it samples from.
    """
    while True:
        try:
            return check_engines(policy, publisher.fleet.present, agreement)
        except AtroposError:  # what it is differs between ranks
            if not run_on_rank0(policy.world, publisher.lost_servers):
                raise


def check_engines(
    policy: Policy, engines: Sequence[InferenceServer], agreement: Agreement
) -> Mismatch:
    sequences: list[list[int]] = [policy.tokenizer(text)["input_ids"] for text in PROBE_TEXTS]
    run_on_rank0(policy.world, lambda: _check_tokenizers(engines, sequences[0]))
    mismatch = check_servers(policy, engines, sequences, None, agreement)
    check_temperature(policy, engines, sequences[0], agreement)
    return mismatch


def _check_tokenizers(engines: Sequence[InferenceServer], ids: list[int]) -> None:
    for engine in engines:
        if (theirs := engine.token_ids(PROBE_TEXTS[0])) != ids:
            raise StaleWeights(
                f"{engine.url} has another tokenizer than the trainer: the same sentence is"
                f" {len(theirs)} tokens there and {len(ids)} here. Start server and trainer"
                " with the same model."
            )


def check_temperature(
    policy: Policy,
    engines: Sequence[InferenceServer],
    prompt: list[int],
    agreement: Agreement,
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
            ours_T = ours[-len(tokens) :]
            by_temperature[temperature] = mismatch_of(ours_T, theirs, agreement.tolerance)
        mismatch = by_temperature[PROBE_TEMPERATURE]
        scale = 1 / PROBE_TEMPERATURE
        if agreement.judge(mismatch, Tokens.SAMPLED, scale):
            continue
        unscaled = agreement.judge(by_temperature[1.0], Tokens.SAMPLED, scale)
        why = UNSCALED if unscaled else "They are not those of temperature 1 either."
        raise StaleWeights(
            f"{url} agrees with the trainer on a given text, but sampled at temperature"
            f" {PROBE_TEMPERATURE} its tokens come with other logprobs than the trainer's at"
            f" that temperature: {mismatch}; at most {agreement.text(Tokens.SAMPLED)}. {why}"
        )


@dataclass(frozen=True)
class SamplerCheck:
    """Comparison of the newest tokens of some rows with their sampler.

    Tokens of the weights held here have their logprobs. Of older tokens the policy has moved
    away, by an unknown distance; but it has not moved along a change of temperature.
    """

    rows: Sequence[Row]
    version: int | None  # version of the compared tokens; None: there are none
    is_held: bool  # whether the policy has exactly the weights of that version
    agreement: Agreement

    @classmethod
    def of(
        cls, rows: Sequence[Row], state: TrainerState, agreement: Agreement
    ) -> SamplerCheck:
        """``state`` is that of the policy that is about to be trained."""
        version = newest_version(rows)
        is_held = version == state.version == state.step  # False: it took unpublished steps
        return cls(rows, version, is_held, agreement)

    @property
    def metric(self) -> str:
        return "logprob_mismatch" if self.is_held else "logprob_drift"

    def require(self, policy: Policy, mismatch: Mismatch) -> None:
        """Judge the distance of all ranks. Collective.

        Raises:
            StaleWeights: tokens of the version held here have different logprobs; or older
                tokens have logprobs of a temperature that their rows do not name.
        """
        version, agreement = self.version, self.agreement
        if version is None:
            return
        if self.is_held:
            near = agreement.judge(mismatch, Tokens.SAMPLED)
        else:
            near = mismatch.mean <= max(agreement.tolerance, DRIFT_NATS)
        if near:
            return
        temperature, tried = sampled_temperature(policy, self.rows, version)
        cause = "" if temperature is None else about_temperature(temperature, tried)
        if self.is_held:
            cause = cause or about_truncation(tried)
            raise StaleWeights(
                f"tokens sampled at version {version} do not have the logprobs of the trainer's"
                f" version {version}: {mismatch}; at most {agreement.text(Tokens.SAMPLED)}. The batch was not"
                f" trained on and not acked. {cause}{SAMPLED_LIKELY}"
            )
        if cause and not all(row.names_temperature for row in tried):
            raise StaleWeights(
                f"tokens sampled at version {version} are {mismatch.mean:.3g} nats per token from"
                f" the trainer's newer weights. The batch was not trained on and not acked. {cause}"
            )
        if cause:  # the row knows better: an update can resemble a temperature
            logger.info("tokens of version %d: %s", version, cause)
