"""Canary of the prefix caches: whether servers forget keys and values of the weights before.

    before the publish   each server continues prefixes of the batch: its cache holds them
    after the publish    it continues the same prefixes; the trainer scores these tokens

Scoring a given text does not find a stale cache: vLLM computes prompts of which logprobs are
requested without reading its cache. Tokens sampled after a cached prefix do.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import repeat

from atroposlib.errors import StaleWeights
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.policy import Policy
from example_trainer.weights.agreement import Agreement, Tokens
from example_trainer.weights.engines import InferenceServer, ServerGone
from example_trainer.weights.fleet import Fleet
from example_trainer.weights.mismatch import Mismatch, mismatch_of

CANARY_TOKENS = 16  # sampled after each prefix
MAX_PREFIX_TOKENS = 1024  # vLLM caches whole blocks, of 16 tokens on a GPU and 128 on a CPU
CANARIES = 4
REMEDY = (
    "Its prefix cache was not reset with the weights: update the engine, or start it without"
    " prefix caching (vLLM: --no-enable-prefix-caching, SGLang: --disable-radix-cache)."
)


Answers = list[tuple[list[int], list[float]]]  # tokens and logprobs after each prefix


def canary_prefixes(sequences: Sequence[list[int]]) -> list[list[int]]:
    """Beginnings of the sequences that leave room for the tokens of a canary."""
    lengths = [min(len(tokens) - CANARY_TOKENS, MAX_PREFIX_TOKENS) for tokens in sequences]
    return [tokens[: max(1, length)] for tokens, length in zip(sequences, lengths)][:CANARIES]


def fill_prefix_caches(policy: Policy, fleet: Fleet, prefixes: Sequence[list[int]]) -> None:
    """Have every present server compute the prefixes with the weights that it holds. Collective.

    A server that does not answer is left to the publish.
    """

    def fill() -> None:
        for engine in fleet.present:
            with suppress(ServerGone):
                _continue_prefixes(engine, prefixes, 1)

    run_on_rank0(policy.world, fill)


def check_prefix_caches(
    policy: Policy,
    fleet: Fleet,
    prefixes: Sequence[list[int]],
    version: int,
    agreement: Agreement,
) -> dict[str, float]:
    """Compare tokens sampled after the prefixes with the trainer; metrics. Collective.

    A server that gives no answer, or names another version because it restarted, is left out of
    ``fleet``. One that disagrees samples once more: a restarted server may have got the weights
    between its answer and the look at its version, but a stale cache stays stale.

    Raises:
        StaleWeights: a server samples with other keys and values than the trainer computes.
    """

    def sample(url: str | None = None) -> list[tuple[str, Answers]]:
        """Answers of one server, or of all, on rank 0."""
        sampled = []
        for engine in list(fleet.present):
            if url not in (None, engine.url):
                continue
            try:
                answers = _continue_prefixes(engine, prefixes, CANARY_TOKENS)
                if engine.version() != str(version):
                    raise ServerGone("restarted with other weights")
                sampled.append((engine.url, answers))
            except ServerGone as gone:
                fleet.leave_out([(engine.url, gone)])
        return sampled

    def judge(url: str, answers: Answers) -> tuple[Mismatch, bool]:
        """Mismatch of the sampled tokens, and whether it is within the tolerance."""
        whole = [prefix + ids for prefix, (ids, _) in zip(prefixes, answers)]
        theirs = [logprobs for _, logprobs in answers]
        ours = [
            scored[len(scored) - len(of_server) :]
            for scored, of_server in zip(policy.logprobs_of(whole), theirs)
        ]
        mismatch = sum(map(mismatch_of, ours, theirs, repeat(agreement.tolerance)), Mismatch())
        source = f"prefix cache of {url}"
        return mismatch, agreement.judge(mismatch, Tokens.SAMPLED, source=source)

    worst, tokens = Mismatch(), 0
    for url, answers in run_on_rank0(policy.world, sample):
        mismatch, agrees = judge(url, answers)
        if not agrees:
            again = run_on_rank0(policy.world, partial(sample, url))
            if not again:
                continue  # it has gone meanwhile
            mismatch, agrees = judge(*again[0])
        if not agrees:
            raise StaleWeights(
                f"{url} agrees with version {version} on a given text, but not after prefixes"
                f" that it had computed with the weights before: {mismatch}; at most"
                f" {agreement.text(Tokens.SAMPLED)}. Nothing was acked. {REMEDY}"
            )
        tokens += mismatch.tokens
        worst = max(worst, mismatch, key=lambda found: found.max)
    return {"prefix_cache_tokens": tokens, "prefix_cache_mismatch_max": worst.max}


def _continue_prefixes(
    engine: InferenceServer, prefixes: Sequence[list[int]], count: int
) -> list[tuple[list[int], list[float]]]:
    """Sampled tokens and logprobs of each prefix, at temperature 1, in a batch of the server."""
    with ThreadPoolExecutor(len(prefixes) or 1) as pool:
        return list(pool.map(partial(engine.sample, count=count, temperature=1.0), prefixes))
