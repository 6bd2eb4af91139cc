"""How many rollouts may be under way so that none is born too stale. Pure."""

from __future__ import annotations

UNBOUNDED = 2**62  # more sequences than any run has; still fits the integers of every store


def budget(
    batch_size: int,
    max_staleness: int | None,
    policy_version: int,
    base_version: int,
    admission_base: int,
) -> int:
    """Sequences that may be accepted or admitted over the whole run (see ``Store.admit``).

    A sequence that begins now is trained at the latest after everything accepted or
    admitted before it; each version trains one batch. So ``max_staleness`` batches may be
    ahead of the one in training, plus one for each version since ``base_version``.

    The count begins anew at each registration and rewind: ``base_version`` is the policy
    version then and ``admission_base`` the sequences trained by then. Otherwise a trainer
    that restarts at an older version would find the budget spent, for ever.

    Example: batches of 8, staleness 1, two versions after the base: (1 + 2 + 1) * 8 = 32.
    """
    if max_staleness is None:
        return UNBOUNDED
    versions = max(0, policy_version - base_version)
    return admission_base + (max_staleness + versions + 1) * batch_size
