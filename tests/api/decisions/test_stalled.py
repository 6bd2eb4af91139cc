"""Names of processes that do not go on."""

from __future__ import annotations

from atroposlib.api.decisions.stalled import directory, inference_server, stalled
from atroposlib.run_status.evidence import FORGOTTEN_S
from atroposlib.wire import Announcement, Heartbeat
from atroposlib.wire.status import Participant, ServerState

URL = "http://gpu1:9001"


def process(role: str, name: str, age_s: float, **details) -> Participant:
    return Participant(role=role, name=name, phase="x", details=details, age_s=age_s)


def state(
    silent_s: float | None = None, running: int = 1, **more
) -> tuple[ServerState, float]:
    return ServerState(url=URL, silent_s=silent_s, running=running, **more), 1.0


def test_processes_with_recent_heartbeats_are_not_named_whatever_they_wait_for():
    waiting = Participant(role="trainer", name="t", phase="x", waiting_on="a batch", age_s=2)
    assert stalled([waiting, process("env", "e_0", 14.9)]) == []


def test_silent_processes_are_named_the_longest_silence_first():
    found = stalled([process("env", "e_0", 22.0), process("trainer", "grpo", 25.0)])
    assert found == [
        "trainer grpo has sent no heartbeat for 25 s",
        "environment e_0 has sent no heartbeat for 22 s",
    ]


def test_processes_that_ended_or_were_replaced_are_not_named():
    assert stalled([process("env", "e_0", 30.0, ended=1)]) == []
    assert (
        stalled([process("env", "e_0-0a1b2c", 30.0), process("env", "e_0-aaaaaa", 1.0)]) == []
    )
    assert stalled([process("trainer", "a", 30.0), process("trainer", "b", 1.0)]) == []


def test_a_successor_that_ended_later_leaves_no_predecessor_behind():
    old, new = process("env", "e_0-0a1b2c", 60.0), process("env", "e_0-aaaaaa", 20.0, ended=1)
    assert stalled([old, new]) == []
    assert (
        len(
            stalled(
                [process("env", "e_0-0a1b2c", 60.0, ended=1), process("env", "e_0-b", 20.0)]
            )
        )
        == 1
    )


def test_an_old_silence_is_history_only_beside_a_process_of_its_role_that_goes_on():
    old = process("env", "e_0", FORGOTTEN_S + 1)
    assert stalled([old, process("env", "other", 1.0)]) == []
    assert stalled([old]) == ["environment e_0 has sent no heartbeat for 601 s"]


def test_the_token_rates_of_the_callers_of_a_server_add_up():
    rates = [state(tokens_per_s=40.25), state(tokens_per_s=1.5), state()]
    assert inference_server(URL, rates).details["tokens_per_s"] == 41.8
    assert "tokens_per_s" not in inference_server(URL, [state()]).details


def test_a_server_that_answers_none_of_its_callers_is_named():
    server = inference_server(URL, [state(24.0), state(22.0), state(running=0)])
    assert server.details == {"running": 2, "waiting": 0, "callers": 3, "silent_s": 22.0}
    assert stalled([server]) == [f"inference server {URL} has answered nothing for 22 s"]


def test_a_server_that_answers_another_caller_is_not_named():
    server = inference_server(URL, [state(24.0), state(version=3), state(version=4)])
    assert server.details["version"] == 4 and server.phase == "serving"
    assert stalled([server]) == []


def test_a_server_that_an_evaluation_holds_is_listed_and_takes_no_part():
    announced = Announcement(url=URL, instance="i", started=0.0)
    beat = Heartbeat(
        role="inference", name="a", phase="x", waiting_on=None, announces=announced
    )
    trainer = Heartbeat(role="trainer", name="t", phase="x", waiting_on=None)
    beats = [(beat, 99.0), (trainer, 99.0)]

    def listed(held: bool):
        reports = {URL: {("trainer", "t"): (ServerState(url=URL, held=held), 99.0)}}
        (entry,) = directory(beats, reports, 100.0, "api", 0.0).servers
        return entry

    assert (listed(True).held, listed(True).takes_part) == (True, False)
    assert (listed(False).held, listed(False).takes_part) == (False, True)
    assert inference_server(URL, [state(held=True)]).details["held"] == 1
    assert "held" not in inference_server(URL, [state()]).details
