"""Live environments and their heartbeats."""

from __future__ import annotations

import msgspec
import pytest

from atroposlib.api.common.run_record import EnvEntry
from atroposlib.api.decisions.run_state import MINIMUM_TIMEOUT_S
from atroposlib.api.run.liveness import FORGET_AFTER_S, MAX_PARTICIPANTS, REPORT_S, Liveness
from atroposlib.errors import ConfigError
from atroposlib.run_status.evidence import SILENT_S
from atroposlib.wire import Announcement, Heartbeat, RegisterEnv
from atroposlib.wire.status import ServerState

ENV = RegisterEnv(max_token_length=64, desired_name="env", weight=1.0, group_size=4)


def entry(env_id: int) -> EnvEntry:
    return EnvEntry(env_id=env_id, wandb_name=f"env_{env_id}", **ENV.model_dump())


def test_the_set_of_live_environments_changes_only_when_an_environment_leaves_or_returns():
    now = [0.0]
    liveness = Liveness(lambda: now[0])
    envs = (entry(0), entry(1))
    both = liveness.live(envs)
    assert [env.env_id for env in both] == [0, 1]
    now[0] = 200.0
    liveness.record_request(0)
    assert liveness.live(envs) is both
    now[0] = 300.5
    assert [env.env_id for env in liveness.live(envs)] == [0]
    liveness.record_request(1)
    assert [env.env_id for env in liveness.live(envs)] == [0, 1]
    assert [env.env_id for env in liveness.live((entry(0),))] == [0]


def test_environments_that_join_are_added_to_the_live_ones_that_are_known():
    now, envs = [0.0], ()
    liveness = Liveness(lambda: now[0])
    for env_id in range(60):
        now[0] += 20.0
        joined = msgspec.structs.replace(entry(env_id), joined=now[0])
        envs = (*envs, joined)
        if env_id % 7 == 3:  # an earlier one leaves as this one joins
            envs = (*envs[:-3], msgspec.structs.replace(envs[-3], connected=False), *envs[-2:])
        if env_id % 5 == 0:
            liveness.record_request(env_id // 2)
        wanted = Liveness(lambda: now[0])
        wanted._since, wanted._calls = liveness._since, liveness._calls
        assert liveness.live(envs) == wanted.live(envs)


def test_a_killed_environment_blocks_batches_by_its_minimum_for_a_minute():
    now = [0.0]
    liveness = Liveness(lambda: now[0])
    minimum = msgspec.structs.replace(entry(0), min_batch_allocation=0.5)
    envs = (minimum, msgspec.structs.replace(minimum, env_id=1, join_id="polls"))
    assert len(liveness.live(envs)) == 2
    now[0] = MINIMUM_TIMEOUT_S + 1
    assert [env.env_id for env in liveness.live(envs)] == [0]
    liveness.record_request(1)
    assert len(liveness.live(envs)) == 2


def test_an_environment_that_was_dead_before_a_restart_stays_dead():
    notes = {0: 1000.0, 1: 900.0, 2: 970.0}  # the API stopped at about 1000
    now = [5000.0]
    liveness = Liveness(lambda: now[0])
    polls = {"min_batch_allocation": 0.25, "join_id": "polls"}
    envs = tuple(msgspec.structs.replace(entry(env_id), **polls) for env_id in range(3))
    assert [env.env_id for env in liveness.live(envs, notes)] == [0, 2]
    now[0] += MINIMUM_TIMEOUT_S - 29.0  # the silence before the stop counts
    assert [env.env_id for env in liveness.live(envs, notes)] == [0]
    liveness.record_request(1)
    assert [env.env_id for env in liveness.live(envs, notes)] == [0, 1]


def test_without_notes_of_the_process_before_nobody_was_silent():
    liveness = Liveness(lambda: 5000.0)
    assert [env.env_id for env in liveness.live((entry(0), entry(1)))] == [0, 1]


def test_heartbeats_are_evicted_by_age_and_by_count():
    now = [0.0]
    liveness = Liveness(lambda: now[0])
    liveness.record_heartbeat(Heartbeat(role="env", name="first", phase="rollout"))
    now[0] = FORGET_AFTER_S
    assert [one.name for one in liveness.participants()] == ["first"]
    now[0] += 1.0
    assert liveness.participants() == []
    for no in range(MAX_PARTICIPANTS + 1):
        liveness.record_heartbeat(Heartbeat(role="env", name=str(no), phase="rollout"))
    names = [one.name for one in liveness.participants()]
    assert (len(names), names[0]) == (MAX_PARTICIPANTS, "1")


def test_reports_about_inference_servers_are_summed_until_they_are_old():
    now = [0.0]
    liveness = Liveness(lambda: now[0])
    for name in ("a", "b"):
        server = ServerState(url="http://gpu1:9001", running=3)
        liveness.record_heartbeat(
            Heartbeat(role="env", name=name, phase="rollout", servers=[server])
        )
    [server] = [one for one in liveness.participants() if one.role == "inference"]
    assert (server.name, server.details["running"]) == ("http://gpu1:9001", 6)
    now[0] = REPORT_S + 1
    liveness.record_heartbeat(Heartbeat(role="env", name="a", phase="rollout"))
    assert {one.role for one in liveness.participants()} == {"env"}


def test_a_heartbeat_with_too_many_details_is_refused():
    liveness = Liveness(lambda: 0.0)
    details = {str(no): no for no in range(65)}
    with pytest.raises(ConfigError, match="at most 64"):
        liveness.record_heartbeat(
            Heartbeat(role="env", name="e", phase="rollout", details=details)
        )


def test_request_times_are_synced_before_other_replicas_time_out_an_environment():
    now = [0.0]
    liveness = Liveness(lambda: now[0])
    liveness.record_request(0)
    assert liveness.pending_sync({0: 0.0}) == {}
    now[0] = 75.0
    liveness.record_request(0)
    assert liveness.pending_sync({0: 0.0, 1: 9.0}) == {0: 75.0, 1: 9.0}


def announced(name: str, url: str, **details: int) -> Heartbeat:
    known = Announcement(url=url, instance=f"{name} {url}", started=0, version=3)
    return Heartbeat(
        role="inference", name=name, phase="serving", announces=known, details=details
    )


def test_an_entry_of_the_directory_ends_with_its_heartbeats_and_moves_with_its_name():
    now = [0.0]
    liveness = Liveness(lambda: now[0])
    for name in ("a", "b", "c"):
        liveness.record_heartbeat(announced(name, f"http://{name}:1"))
    assert not liveness.directory().complete  # of an API that has just started
    now[0] = SILENT_S + 1
    liveness.record_heartbeat(announced("a", "http://a:2"))
    liveness.record_heartbeat(announced("c", "http://c:1", ended=1))
    directory = liveness.directory()
    assert directory.complete
    assert [(one.name, one.url, one.version) for one in directory.servers] == [
        ("a", "http://a:2", 3)
    ]
    silent = {one.name: one.phase for one in liveness.participants()}
    assert silent["http://b:1"] == "no answer" and silent["http://a:2"] == "serving"


def test_a_server_takes_part_once_the_trainer_reports_that_it_answers():
    now = [0.0]
    liveness = Liveness(lambda: now[0])

    def taking_part() -> list[str]:
        return [one.url for one in liveness.directory().servers if one.takes_part]

    def report(**silent: float | None) -> None:
        states = [ServerState(url=f"http://{k}:1", silent_s=v) for k, v in silent.items()]
        beat = Heartbeat(role="trainer", name="t", phase="training", servers=states)
        liveness.record_heartbeat(beat)

    def announce_all() -> None:
        for name in ("a", "b"):
            liveness.record_heartbeat(announced(name, f"http://{name}:1"))

    announce_all()
    assert taking_part() == []  # a trainer may be about to report
    now[0] = SILENT_S + 1
    announce_all()
    assert taking_part() == ["http://a:1", "http://b:1"]  # no trainer of this package
    report(a=None)
    assert taking_part() == ["http://a:1"]
    report(a=2.0, b=None)
    assert taking_part() == ["http://b:1"]
