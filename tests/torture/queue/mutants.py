"""Bugs a queue could have, each a small patch, applied in a process before a store is made."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from atroposlib.api.common.records import GroupState, Selection
from atroposlib.api.decisions import batching
from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.store.sql import (
    ack as ack_queries,
    claim as claim_queries,
    payloads,
    put,
    run,
    schema,
    writer,
)
from atroposlib.errors import KeyConflict
from tests.torture.queue import log_mutants  # noqa: F401 - registers its bugs
from tests.torture.queue.mutation import (
    MUTANTS,
    Judge,
    mutant,
    noticed_by,
    rewrite,
    rewrite_operation,
    wrap,
)

__all__ = ["MUTANTS"]

# --- leases -------------------------------------------------------------------------


@mutant
def ack_ignores_the_epoch() -> None:
    def around(original: Any, row: Any, generation: int, epoch: int) -> Any:
        return original(row, generation, row.epoch)

    wrap(ack_queries, "_holds", around)


@mutant
def ack_ignores_the_generation() -> None:
    def around(original: Any, connection: Any) -> Any:
        last = original(connection).last_batch
        return SimpleNamespace(require_generation=lambda generation: None, last_batch=last)

    wrap(ack_queries, "read_meta", around)


@mutant
def a_live_lease_is_given_to_anybody() -> None:
    wrap(claim_queries, "_due", lambda original, opened, claim: list(opened))


@mutant
def an_ended_lease_is_never_given_on() -> None:
    def around(original: Any, opened: Any, claim: Any) -> Any:
        return original([row for row in opened if row.generation != claim.generation], claim)

    wrap(claim_queries, "_due", around)


@mutant
def a_repeated_claim_brings_another_batch() -> None:
    def around(original: Any, opened: Any, claim: Any) -> Any:
        return original(opened, replace(claim, claim_id=None))

    wrap(claim_queries, "_due", around)


@mutant
def a_late_repeat_of_a_claim_takes_a_batch() -> None:
    wrap(claim_queries, "_refuse_answered", lambda original, counters, claim: None)


@mutant
def redelivery_begins_with_the_newest() -> None:
    wrap(claim_queries, "_due", lambda original, *args: original(*args)[::-1])


@mutant
def redelivery_keeps_the_epoch() -> None:
    def around(original: Any, counters: Any, row: Any, claim: Any) -> Any:
        return original(counters, replace(row, epoch=row.epoch - 1), claim)

    wrap(claim_queries, "_deliver_again", around)


@mutant
def a_batch_is_delivered_for_ever() -> None:
    def around(original: Any, counters: Any, row: Any, claim: Any) -> Any:
        return original(counters, replace(row, tries=0), claim)

    wrap(claim_queries, "_deliver_again", around)


@mutant
def a_batch_put_last_keeps_its_number() -> None:
    wrap(claim_queries, "_put_last", lambda original, *args: None)


@mutant
def a_revived_batch_keeps_its_number() -> None:
    wrap(ack_queries, "renumber", lambda original, *args: None)


@mutant
def one_rank_acks_for_all() -> None:
    def around(original: Any, ack: Any, connection: Any) -> Any:
        done = original(ack, connection)
        return done or (ack.rank is not None and original(replace(ack, rank=None), connection))

    wrap(ack_queries.Ack, "__call__", around)


@mutant
def ranks_of_an_older_delivery_count() -> None:
    rewrite(claim_queries, "_deliver_again", "ranks = excluded.ranks", "ranks = batch.ranks")


@mutant
def extend_does_nothing() -> None:
    wrap(ack_queries.Extend, "__call__", lambda original, extend, c: extend.row(c))


# --- checkpoints --------------------------------------------------------------------


@mutant
def commit_frees_one_too_many() -> None:
    rewrite_operation(ack_queries.Commit, "'acked' AND no <= ?", "'acked' AND no <= ? + 1")


@mutant
def commit_forgets_open_batches() -> None:
    rewrite(ack_queries, "_count_as_acked", "'open' AND no <= ?", "'open' AND no < ?")


@mutant
def commit_counts_claims_without_a_name() -> None:
    rewrite_operation(ack_queries.Commit, "claim_id IS NOT NULL", "TRUE")


@mutant
def rewind_leaves_one_out() -> None:
    rewrite_operation(ack_queries.Rewind, "no > ?", "no > ? + 1")


@mutant
def rewind_leaves_the_old_owner_in_charge() -> None:
    rewrite_operation(
        ack_queries.Rewind, "generation = ?,", "generation = max(?, generation),"
    )


@mutant
def a_registration_fences_nobody() -> None:
    wrap(
        run.SaveRun,
        "__call__",
        lambda original, save, c: original(replace(save, fence=False), c),
    )


@mutant
def a_reset_counts_batches_from_one() -> None:
    def around(original: Any, connection: Any) -> Any:
        done = original(connection)
        connection.execute("UPDATE meta SET last_batch = 0")
        return done

    wrap(run, "reset_run", around)


# --- groups -------------------------------------------------------------------------


@mutant
def keys_are_not_unique() -> None:
    schema._TABLES = schema._TABLES.replace("CREATE UNIQUE INDEX", "CREATE INDEX")
    wrap(put, "_known_groups", lambda original, *args: {})


@mutant
def a_key_with_other_content_is_absorbed() -> None:
    def around(original: Any, new_groups: Any, known: Any) -> Any:
        alike = {key: replace(old, digest=b"?") for key, old in known.items()}
        return original([replace(group, digest=b"?") for group in new_groups], alike)

    wrap(put, "_places_of_new", around)


@mutant
def a_conflicting_post_is_taken_in_part() -> None:
    def around(original: Any, one: Any, c: Any) -> Any:
        try:
            return original(one, c)
        except KeyConflict:
            return original(replace(one, groups=one.groups[:1]), c)

    wrap(put.Put, "__call__", around)


@mutant
def a_late_post_joins_the_changed_run() -> None:
    def around(original: Any, one: Any, c: Any) -> Any:
        return original(replace(one, revision=schema.read_meta(c).revision), c)

    wrap(put.Put, "__call__", around)


@mutant
def two_saves_of_one_revision() -> None:
    def around(original: Any, save: Any, c: Any) -> Any:
        return original(replace(save, revision=schema.read_meta(c).revision), c)

    wrap(run.SaveRun, "__call__", around)


@mutant
def the_bound_counts_until_the_ack_only() -> None:
    kept = (GroupState.BUFFERED, GroupState.PENDING, GroupState.LEASED)
    wrap(schema, "keeps_payload", lambda original, state: state in kept)


@mutant
def a_buffer_completes_once_per_post() -> None:
    def around(original: Any, counters: Any, env: Any, expected: int, complete: Any) -> Any:
        answers = [complete]
        return original(
            counters,
            env,
            expected,
            lambda buffer, size: answers.pop()(buffer, size) if answers else [],
        )

    wrap(put, "_complete", around)


@mutant
def a_buffer_mixes_environments() -> None:
    rewrite(
        put,
        "_buffer",
        "state = 'buffered' AND env = ?",
        "state = 'buffered' AND ? >= 0",
    )


@mutant
def dissolving_loses_a_group() -> None:
    def around(original: Any, counters: Any, row: Any, *more: Any) -> None:
        gid = min(one.gid for one in claim_queries.members_of(counters.connection, row.no))
        original(counters, row, *more)
        counters.connection.execute(
            "UPDATE groups SET state = 'dropped' WHERE gid = ?", (gid,)
        )

    wrap(ack_queries, "dissolve", around)
    wrap(claim_queries, "dissolve", around)


@mutant
def dropped_groups_are_not_counted() -> None:
    wrap(
        claim_queries,
        "_form_of",
        lambda original, counters, claim, selection, dropped: original(
            counters, claim, selection, 0
        ),
    )


@mutant
def dropped_payloads_stay() -> None:
    rewrite(claim_queries, "drop", "FROM payload WHERE", "FROM payload WHERE 1 = 0 AND")


@mutant
def a_choice_is_made_once() -> None:
    def around(original: Any, counters: Any, claim: Any, choose: Any) -> Any:
        answers: list[Selection] = []

        def once(queue: Any, fair_share: Any) -> Selection:
            if answers:
                return Selection(blocked_reason=answers[0].blocked_reason)
            answers.append(choose(queue, fair_share))
            return answers[0]

        return original(counters, claim, once)

    wrap(claim_queries, "_form", around)


@mutant
def the_queue_is_shown_short() -> None:
    wrap(claim_queries, "_queue", lambda original, c, size: original(c, size)[:3])


@mutant
def the_mix_is_forgotten() -> None:
    wrap(claim_queries, "keep_document", lambda original, *args: None)


@mutant
def a_lost_reply_is_absorbed_for_any_environment() -> None:
    rewrite(put, "_repeats", "unconfirmed.env = ?", "unconfirmed.env <> -9 + 0 * ?")


@mutant
def a_repeat_is_absorbed_for_ever() -> None:
    rewrite(put, "_repeats", "SET lost = 0", "SET lost = 1")


# --- choices and admission ----------------------------------------------------------


@mutant
def minima_are_a_wish() -> None:
    wrap(batching, "first_exact", lambda original, keys, size, *needs: original(keys, size))


@mutant
def staleness_is_one_off() -> None:
    wrap(
        StalenessRule,
        "drops",
        lambda original, rule, group: original(
            replace(rule, policy_version=rule.policy_version - 1), group
        ),
    )


@mutant
def a_lease_asked_for_again_is_granted_again() -> None:
    def around(original: Any, admit: Any, connection: Any) -> Any:
        connection.execute(
            "DELETE FROM admission WHERE admission_id = ?", (admit.grant.admission_id,)
        )
        return original(admit, connection)

    wrap(run.Admit, "__call__", around)


@mutant
def admission_forgets_what_was_committed() -> None:
    rewrite_operation(run.Admit, "FROM totals", "FROM totals WHERE state <> 'committed'")


# --- bugs that only a crash or a disk fault shows -----------------------------------


@noticed_by(Judge.POWER)
def answers_come_before_the_commit() -> None:
    def around(original: Any, self: Any, run: Any, within: bool) -> Any:
        outcomes = original(self, run, within)
        for operation, (value, error) in zip(run, outcomes):
            reply = operation.reply
            reply.set_result(value) if error is None else reply.set_exception(error)
        return outcomes

    def commit(original: Any, self: Any, operations: Any) -> None:
        try:
            self._database.begin()
            for operation in operations:
                self._attempt([operation], True)
            self._database.commit()
        except self._database.faults as cause:
            self._database.rollback()
            writer._refuse(operations, self._database.fault(cause))

    wrap(writer.Writer, "_attempt", around)
    wrap(writer.Writer, "_commit", commit)


@noticed_by(Judge.POWER)
def the_log_is_not_synced() -> None:
    from atroposlib.api.store import sqlite

    def unsynced(connect: Any, path: Any, vfs: Any, synchronous: str, read_only: bool) -> Any:
        return connect(path, vfs, "NORMAL", read_only)

    wrap(sqlite, "open_database", unsynced)


@noticed_by(Judge.ROT)
def digests_are_not_checked() -> None:
    class Alike(bytes):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = bytes.__hash__

    wrap(payloads, "digest_of", lambda original, payload: Alike(original(payload)))
