"""Lineage of policy versions: which of several weights with the same number sampled a token.

    life 1   0 -- 1 -- ... -- 30 -- 31 -- 32   killed; its last checkpoint is of step 30
    life 2                     '--- 31 -- ...  registered with starting step 30

The incarnation is the number of a trainer's life within a run, counted from 1 by the API.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_LIVES = 1000  # starts that are kept


def on_lineage(
    version: int, incarnation: int | None, current: int, starts: Sequence[int]
) -> int:
    """The version on the line of the current life that lies as many steps back.

    Version 31 of life 1 above is a step off version 30 of life 2, as version 29 is, so 29
    is returned: it never passes for version 31 of life 2. Up to a fork lives share their
    weights. Where that version does not exist the result lies below -1, the mark of an
    unknown version.

    Args:
        incarnation: of the version; None, or that of a later life, returns ``version``.
        current: incarnation of the current life.
        starts: first version of the last lives, ending with the current life.
    """
    if version < 0 or incarnation is None or incarnation >= current:
        return version
    fork = min(starts[-(current - incarnation) :], default=version)
    if version <= fork:
        return version
    back = 2 * fork - version
    return back if back >= 0 else back - 1
