"""The run as a state machine, without HTTP and without a store."""

from __future__ import annotations

import msgspec
import pytest

from atroposlib.api.archive.records import RunFacts
from atroposlib.api.common.run_record import RunRecord, RunState
from atroposlib.api.decisions.run_state import (
    KEPT_ENVS,
    MAX_ENVS,
    MAX_REGISTERED,
    TRAINER_SILENT_S,
    announce,
    expected_size,
    find_env,
    is_repeated,
    join,
    leave,
    rebase,
    register,
    require_free,
    require_key,
    require_length,
    require_polled,
    require_rewindable,
    start,
)
from atroposlib.errors import (
    CannotRewind,
    ConfigError,
    InvalidGroup,
    NotRegistered,
    RunTaken,
    StaleGeneration,
    UnknownEnv,
)
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


def test_a_repeated_join_gets_the_same_environment():
    body = RegisterEnv(**ENV, join_id="a")
    run, first = join(STARTED, body)
    assert join(run, body) == (run, first)
    _, other = join(run, RegisterEnv(**ENV | {"desired_name": "another"}, join_id="a"))
    _, second = join(run, RegisterEnv(**ENV))
    assert first.env_id != other.env_id == second.env_id


def test_a_later_life_of_a_seat_takes_the_place_of_the_earlier_life():
    body = RegisterEnv(**ENV, seat="environment-0", join_id="first")
    run, ghost = join(STARTED, body)
    beside = ENV | {"desired_name": "another"}
    run, neighbour = join(run, RegisterEnv(**beside, seat="environment-0"))
    run, without = join(run, RegisterEnv(**ENV))
    run, successor = join(run, body.model_copy(update={"join_id": "second"}))
    connected = [env.env_id for env in run.envs if env.connected]
    assert connected == [neighbour.env_id, without.env_id, successor.env_id]
    assert join(run, body.model_copy(update={"join_id": "second"})) == (run, successor)
    assert ghost.env_id == 0


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
    with pytest.raises(ConfigError, match="disconnect some"):
        join(full, RegisterEnv(**ENV))


def test_environments_that_are_gone_are_forgotten_and_their_ids_never_used_again():
    run = STARTED
    for _ in range(3 * KEPT_ENVS):
        run, entry = join(run, RegisterEnv(**ENV), live=lambda run: {0, 7})
    assert entry.env_id == 3 * KEPT_ENVS - 1 and len(run.envs) <= KEPT_ENVS
    assert [find_env(run, env).env_id for env in (0, 7)] == [0, 7]
    assert entry.wandb_name == f"e_{entry.env_id}"
    with pytest.raises(UnknownEnv):
        find_env(run, 8)


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


def test_a_run_whose_trainer_commits_or_claims_refuses_get_batch():
    require_polled(STARTED, 1)
    claimed = start(STARTED, claimed=2)
    require_polled(start(claimed), 3)  # another trainer registered since
    committing = register(RunRecord(), BODY.model_copy(update={"commits": True}), "r", 0)
    for run, generation in ((claimed, 2), (committing, 1)):
        with pytest.raises(StaleGeneration, match="until that registers"):
            require_polled(run, generation)


def test_a_group_has_no_more_tokens_than_rows_of_the_registered_length():
    run = register(RunRecord(), Registration(**TRAINER | {"max_token_len": 50_000}), "id", 0)
    require_length(run, 2, 100_000)
    with pytest.raises(InvalidGroup, match="100000 of 2 rows of max_token_len 50000"):
        require_length(run, 2, 100_001)
    require_length(STARTED, 2, 65_536)  # a small group is accepted at any length
    require_length(RunRecord(), 1, 2**22)


def test_the_document_of_a_run_round_trips():
    run, _ = join(STARTED, RegisterEnv(**ENV))
    run = msgspec.structs.replace(start(run, claimed=1), seen={0: 2.5})
    assert msgspec.json.decode(msgspec.json.encode(run), type=RunRecord) == run


# --- a second trainer -------------------------------------------------------------------


def living(life, **more):
    return BODY.model_copy(
        update={"life": life, "host": "node7", "pid": 42, "run_name": "gsm8k", **more}
    )


HELD = register(STARTED, living("one"), "", trained=0, now=100.0)


def test_a_second_trainer_is_refused_with_the_name_of_the_first_while_that_is_alive():
    with pytest.raises(RunTaken, match=r"gsm8k \(host node7, pid 42\).*since 12 s.*1 s ago"):
        require_free(HELD, living("two"), silent_s=1.0, now=112.0)


@pytest.mark.parametrize(
    ("run", "body", "silent_s"),
    [
        (HELD, living("two"), TRAINER_SILENT_S),  # killed
        (HELD, living("two"), None),  # ended
        (HELD, living("two", take_over=True), 0.0),
        (HELD, living("one"), 0.0),  # the same call again, after a lost reply
        (HELD, living(""), 0.0),  # a trainer of the original
        (STARTED, living("two"), 0.0),  # after one of the original
        (RunRecord(), living("two"), 0.0),
    ],
)
def test_other_trainers_are_not_refused(run, body, silent_s):
    require_free(run, body, silent_s, now=200.0)


def test_a_checkpoint_that_the_run_cannot_be_rewound_to_is_refused():
    require_rewindable(last_batch=9, gone=0, holds=9)
    with pytest.raises(CannotRewind, match="batch 10 was never formed here"):
        require_rewindable(last_batch=9, gone=0, holds=10)
    with pytest.raises(CannotRewind, match="2 batches after batch 4"):
        require_rewindable(last_batch=9, gone=2, holds=4)


def test_each_life_is_counted_once_with_its_first_version():
    again = register(HELD, living("one"), "", trained=0)
    assert (again.incarnation, again.starts) == (1, (0,))
    second = register(again, living("two", starting_step=30), "", trained=0)
    assert (second.incarnation, second.starts) == (2, (0, 30))
    third = register(second, living("", starting_step=40), "", trained=0)
    assert (third.incarnation, third.starts) == (3, (0, 30, 40))


def test_trainers_without_a_life_are_not_counted():
    run = register(STARTED, BODY, "", trained=0)
    assert (run.incarnation, run.starts, announce(run, 3).announced_by) == (0, (), None)


def test_a_version_of_a_trainer_that_was_replaced_is_ignored():
    run = register(HELD, living("two", starting_step=30), "", trained=0)
    assert announce(run, 31, incarnation=1) == run
    announced = announce(run, 31, incarnation=2)
    assert (announced.policy_version, announced.announced_by) == (31, 2)


def test_the_origin_of_an_environment_is_kept_with_the_run():
    source = {"package": "wordle", "version": "0.1.0", "digest": "sha256:1"}
    run, _ = join(STARTED, RegisterEnv(**ENV, source=source))
    run, _ = join(run, RegisterEnv(**ENV))
    kept = msgspec.json.decode(msgspec.json.encode(run), type=RunRecord)
    assert RunFacts.of(kept).sources == {run.envs[0].wandb_name: source}


def test_a_registration_is_repeated_by_its_id_until_another_one_is_in_force():
    named = [BODY.model_copy(update={"register_id": one}) for one in ("a", "b")]
    run = register(STARTED, named[0], "", trained=0)
    assert is_repeated(run, named[0]) and not is_repeated(run, named[1])
    run = register(run, named[1], "", trained=0)
    with pytest.raises(StaleGeneration):
        is_repeated(run, named[0])
    run = register(run, BODY, "", trained=0)  # of an older client, without an id
    assert not is_repeated(run, BODY)
    for _ in range(2 * MAX_REGISTERED):
        run = register(run, BODY, "", trained=0)
    assert len(run.registered) == MAX_REGISTERED


def test_the_end_of_a_run_is_its_trainers_word_until_the_next_one_registers():
    ended = announce(STARTED, 30, ended=True)
    assert (ended.policy_version, ended.ended_step) == (30, 30)
    assert announce(ended, 30).ended_step == 30  # a late copy of an earlier call
    again = register(ended, BODY, "", trained=0)
    assert again.ended_step is None
