"""Shorthand for the calls of a store in tests."""

from __future__ import annotations

from collections import Counter

from atroposlib.api.common.records import Claim, GroupState, NewGroup, Selection
from atroposlib.api.store.sql.ack import Ack
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.run import LoadRun, SaveRun

LEASE_S = 10.0
ENDED_S = LEASE_S  # the first moment after a lease that was taken at time 0


def group(text="{}", n_seq=4, **more):
    payload = text if isinstance(text, bytes) else text.encode()
    return NewGroup(payload=payload, n_seq=n_seq, **more)


def in_order(buffer, expected):
    """A completer: the oldest groups, if they are exactly ``expected`` sequences."""
    whole, held = [], 0
    for gid, n_seq in buffer:
        if held < expected:
            whole.append(gid)
            held += n_seq
    return whole if held == expected else []


def put(store, *groups, revision=None, complete=in_order):
    revision = store.stats().revision if revision is None else revision
    return store.put(groups, revision, complete)


def oldest(size):
    """A chooser: the oldest groups, if they are exactly ``size`` sequences."""

    def choose(queue, fair_share):
        gids, held = [], 0
        for one in queue:
            if held + one.n_seq <= size:
                gids.append(one.gid)
                held += one.n_seq
        if held == size:
            return Selection(gids=tuple(gids))
        return Selection(blocked_reason=f"{held} of {size}")

    return choose


def first_of(n_seq):
    """A chooser: the oldest group of ``n_seq`` sequences alone."""

    def choose(queue, fair_share):
        gids = [one.gid for one in queue if one.n_seq == n_seq]
        return Selection(gids=tuple(gids[:1]), blocked_reason="there is none")

    return choose


def register(store):
    """The next trainer generation."""
    run = store.ask(LoadRun())
    return store.do(SaveRun(run.body or b"run", run.revision, fence=True)).generation


def claim(store, generation, size=8, now=0.0, choose=None, **more):
    asked = Claim(generation=generation, size=size, now=now, lease_s=LEASE_S, **more)
    return store.do(ClaimBatch(asked, choose or oldest(size)))


def ack(store, batch, *, rank=None, commit=False):
    return store.do(Ack(batch.no, batch.generation, batch.epoch, rank=rank, commit=commit))


def held(store, state=GroupState.PENDING):
    """Groups in one of the states that tallies count."""
    return sum(
        group_count.groups
        for group_count in store.stats().group_counts
        if group_count.state is state
    )


def ended(store):
    """(groups, sequences) by the end they came to, without zeros."""
    ends = store.stats().totals
    return {
        end.value: (total.groups, total.sequences)
        for end, total in ends.items()
        if total.groups or total.sequences
    }


def kinds(store):
    """(state, env, n_seq) to (groups, bytes): the tallies as a dictionary."""
    counted = Counter()
    for group_count in store.stats().group_counts:
        assert group_count.groups > 0
        counted[group_count.state.value, group_count.env, group_count.n_seq] = (
            group_count.groups,
            group_count.n_bytes,
        )
    return dict(counted)


def filled(store, n=2, n_seq=8):
    """A store with ``n`` groups, each as large as a batch, and a trainer."""
    put(store, *(group(f"{i}", n_seq, key=f"k{i}") for i in range(n)))
    return register(store)
