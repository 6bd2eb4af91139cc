"""The run as a state machine, without HTTP and without a store."""

from __future__ import annotations

import msgspec
import pytest

from atroposlib.api.common.records import RunRecord, RunState, SentBatch
from atroposlib.api.decisions.run_state import (
    MAX_ENVS,
    announce,
    expected_size,
    join,
    leave,
    rebase,
    register,
    require_key,
    sent,
    start,
)
from atroposlib.errors import ConfigError, InvalidGroup, NotRegistered, UnknownEnv
from atroposlib.wire import RegisterEnv, Registration
from tests.api.harness import ENV, TRAINER

BODY = Registration(**TRAINER)
STARTED = start(register(RunRecord(), BODY, "run", trained=0))


def test_a_run_is_registered_then_started_and_stays_so_when_a_trainer_restarts():
    run = register(RunRecord(), BODY, "run", trained=0)
    assert (run.state, run.run_id) == (RunState.REGISTERED, "run")
    run = register(start(run), BODY.model_copy(update={"batch_size": 8}), "other", trained=12)
    assert (run.state, run.run_id, run.trainer.batch_size) == (RunState.STARTED, "run", 8)
    with pytest.raises(NotRegistered):
        start(RunRecord())


def test_the_staleness_budget_counts_from_the_last_registration_or_rewind():
    body = BODY.model_copy(update={"starting_step": 7})
    run = register(STARTED, body, "", trained=40)
    assert (run.policy_version, run.base_version, run.admission_base) == (7, 7, 40)
    run = rebase(announce(run, 9), trained=24)
    assert (run.policy_version, run.base_version, run.admission_base) == (9, 9, 24)


def test_a_version_never_falls():
    assert announce(announce(STARTED, 5), 3).policy_version == 5


def test_env_ids_are_list_positions_and_are_never_reused():
    run, first = join(STARTED, RegisterEnv(**ENV))
    run, second = join(leave(run, first.env_id), RegisterEnv(**ENV))
    assert (first.env_id, second.env_id) == (0, 1)
    assert (first.wandb_name, second.wandb_name) == ("e_0", "e_1")
    assert [env.connected for env in run.envs] == [False, True]
    for env_id in (-1, 2, 10**30):
        with pytest.raises(UnknownEnv):
            leave(run, env_id)


def test_a_run_has_a_bounded_number_of_environments():
    _, entry = join(STARTED, RegisterEnv(**ENV))
    full = msgspec.structs.replace(STARTED, envs=(entry,) * MAX_ENVS)
    with pytest.raises(ConfigError, match="reset"):
        join(full, RegisterEnv(**ENV))


@pytest.mark.parametrize(
    ("rows", "declared", "expected"),
    [(4, None, None), (3, None, 4), (3, 3, None), (3, 2, 4), (6, None, None)],
)
def test_only_a_group_smaller_than_the_group_size_of_its_env_is_buffered(
    rows, declared, expected
):
    body = BODY.model_copy(update={"batch_size": 8})
    run, entry = join(
        start(register(RunRecord(), body, "r", 0)), RegisterEnv(**ENV | {"group_size": 4})
    )
    assert expected_size(run, entry.env_id, rows, declared) == expected
    assert expected_size(run, None, rows, declared) is None


def test_a_group_larger_than_the_batch_is_refused_with_its_size():
    with pytest.raises(InvalidGroup, match="5 sequences never fits a batch of 4"):
        expected_size(STARTED, None, 5, None)
    assert (
        expected_size(RunRecord(), None, 5, None) is None
    )  # unknown before a trainer registers


def test_a_key_that_a_database_cannot_hold_is_refused():
    for key in ("k" * 257, "a\0"):
        with pytest.raises(InvalidGroup, match="idempotency_key"):
            require_key(key)
    require_key("k" * 256)
    require_key(None)


def test_an_older_reply_never_overwrites_a_newer_one_of_the_same_trainer():
    newer = SentBatch(no=3, epoch=2, generation=1)
    run = sent(STARTED, newer)
    assert sent(run, SentBatch(no=3, epoch=1, generation=1)) is run
    assert sent(run, SentBatch(no=2, epoch=9, generation=1)) is run
    other = SentBatch(no=1, epoch=1, generation=2)
    assert sent(run, other).sent == other


def test_the_document_of_a_run_round_trips():
    run, _ = join(STARTED, RegisterEnv(**ENV))
    run = msgspec.structs.replace(
        sent(run, SentBatch(no=1, epoch=1, generation=1)), seen={0: 2.5}
    )
    assert msgspec.json.decode(msgspec.json.encode(run), type=RunRecord) == run
