"""Fair shares of environments in the trained tokens: deficit round robin. Pure.

Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over the environments that have
groups queued. Each environment has a deficit: the trained tokens due by its weight and not
delivered yet. Rounds add tokens in proportion to the weights, and a group is served in the
first round in which its env has enough tokens. For infinitely small rounds that round has
a closed form, so ordering costs a sort:

    round of a group = (tokens of its env up to and including it - deficit) / weight

Deficits are kept between batches: an exact fill or a minimum may change the order of a
batch, and later batches compensate for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from atroposlib.api.common.records import GroupSummary
from atroposlib.api.decisions.allocation import MIN_ENV_WEIGHT
from atroposlib.errors import StoreError

EnvWeights = Mapping[int | None, float]
DEFAULT_WEIGHT = 1.0  # weight of groups without env, and of envs that are not listed
# Bound on deficits, in batches (or largest groups). Without it, a share that the group sizes
# make impossible would grow a deficit for the rest of the run.
CREDIT_BATCHES = 4


# Environments that the run does not know any more and that keep their balance, the newest.
KEPT_GONE = 256


class EnvBalance(msgspec.Struct, frozen=True):
    """Balance of an environment: tokens due (negative: ahead), and tokens trained."""

    env: int | None
    deficit: float = 0.0
    trained: int = 0  # tokens


class FairShareState(msgspec.Struct, frozen=True):
    """State between batches."""

    envs: tuple[EnvBalance, ...] = ()


def encode(state: FairShareState) -> bytes:
    return msgspec.json.encode(state)


def decode(document: bytes | None) -> FairShareState:
    """The state as last saved; None is a run without batches.

    Raises:
        StoreError: the document cannot be decoded.
    """
    if document is None:
        return FairShareState()
    try:
        return msgspec.json.decode(document, type=FairShareState)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the stored mix of environments cannot be read: {error}") from None


def order(
    queue: Sequence[GroupSummary], weights: EnvWeights, state: FairShareState
) -> list[GroupSummary]:
    """``queue`` (oldest first) in the order of service; first in, first out within an env."""
    deficits = {entry.env: entry.deficit for entry in state.envs}
    spent: defaultdict[int | None, float] = defaultdict(float)
    rounds: list[tuple[float, int]] = []
    for place, group in enumerate(queue):
        env = group.env
        spent[env] += group.cost
        rounds.append(((spent[env] - deficits.get(env, 0.0)) / _weight(weights, env), place))
    rounds.sort()
    return [queue[place] for _, place in rounds]


def after(
    state: FairShareState,
    queue: Sequence[GroupSummary],
    chosen: Iterable[GroupSummary],
    weights: EnvWeights,
) -> FairShareState:
    """The state after ``chosen`` of ``queue`` became a batch.

    Environments with groups queued share the tokens of this batch by weight. An environment
    without groups left loses a positive deficit and keeps a negative deficit, so absence never
    accumulates a claim on later batches.
    """
    picked = list(chosen)
    had: defaultdict[int | None, int] = defaultdict(int)
    for group in picked:
        had[group.env] += group.cost
    taken = {group.gid for group in picked}
    present = {group.env for group in queue} | had.keys()
    left = {group.env for group in queue if group.gid not in taken}
    batch = sum(had.values())
    deficits = {entry.env: entry.deficit for entry in state.envs}
    deficits = _settled(deficits, had, present, batch, weights)
    for env in deficits.keys() - left:
        deficits[env] = min(0.0, deficits[env])
    bound = CREDIT_BATCHES * max([batch, *(group.cost for group in queue)])
    deficits = _balanced(deficits, left, weights, bound)
    trained = {entry.env: entry.trained for entry in state.envs}
    for group in picked:
        trained[group.env] = trained.get(group.env, 0) + group.n_tokens
    known = sorted(
        trained.keys() | deficits.keys(), key=lambda env: (env is not None, env or 0)
    )
    gone = [env for env in known if env is not None and env not in present | weights.keys()]
    forgotten = set(gone[:-KEPT_GONE])
    known = [env for env in known if env not in forgotten]
    return FairShareState(
        tuple(EnvBalance(env, deficits.get(env, 0.0), trained.get(env, 0)) for env in known)
    )


def _settled(
    deficits: Mapping[int | None, float],
    had: Mapping[int | None, int],
    present: set[int | None],
    batch: int,
    weights: EnvWeights,
) -> dict[int | None, float]:
    """Deficits plus the share of ``batch`` tokens, less the tokens of this batch."""
    total = sum(_weight(weights, env) for env in present)
    settled = {}
    for env in deficits.keys() | present:
        weight = _weight(weights, env)
        share = weight / (total if env in present else total + weight)
        settled[env] = deficits.get(env, 0.0) + batch * share - had.get(env, 0)
    return settled


def _balanced(
    deficits: Mapping[int | None, float],
    left: set[int | None],
    weights: EnvWeights,
    bound: float,
) -> dict[int | None, float]:
    """Deficits shifted to sum 0 over the waiting envs, so that a new env starts even."""
    total = sum(_weight(weights, env) for env in left)
    excess = sum(deficits[env] for env in left) / total if left else 0.0
    balanced = {}
    for env, deficit in deficits.items():
        if env in left:
            deficit -= excess * _weight(weights, env)
        balanced[env] = max(-bound, min(bound, deficit))
    return balanced


def realised_shares(state: FairShareState) -> dict[int | None, float]:
    """The share of each env in the trained tokens of the run so far."""
    total = sum(entry.trained for entry in state.envs)
    return {entry.env: entry.trained / total if total else 0.0 for entry in state.envs}


def target_shares(weights: EnvWeights) -> dict[int | None, float]:
    """The share of each env while all have groups queued."""
    total = sum(_weight(weights, env) for env in weights)
    return {env: _weight(weights, env) / total for env in weights}


def _weight(weights: EnvWeights, env: int | None) -> float:
    return max(MIN_ENV_WEIGHT, weights.get(env, DEFAULT_WEIGHT))
