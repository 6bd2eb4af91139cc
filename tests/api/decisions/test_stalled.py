"""Names of processes that do not go on."""

from __future__ import annotations

from atroposlib.api.decisions.stalled import NAMED_FOR_S, inference_server, stalled
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
    assert stalled([waiting, process("env", "e_0", 9.9)]) == []


def test_silent_processes_are_named_the_longest_silence_first():
    found = stalled([process("env", "e_0", 22.0), process("trainer", "grpo", 25.0)])
    assert found == [
        "trainer grpo has sent no heartbeat for 25 s",
        "environment e_0 has sent no heartbeat for 22 s",
    ]


def test_processes_that_ended_or_were_given_up_are_not_named():
    assert stalled([process("env", "e_0", 30.0, ended=1)]) == []
    assert stalled([process("env", "e_0", NAMED_FOR_S + 1)]) == []


def test_the_token_rates_of_the_callers_of_a_server_add_up():
    rates = [state(tokens_per_s=40.25), state(tokens_per_s=1.5), state()]
    assert inference_server(URL, rates).details["tokens_per_s"] == 41.8
    assert "tokens_per_s" not in inference_server(URL, [state()]).details


def test_a_server_that_answers_none_of_its_callers_is_named():
    server = inference_server(URL, [state(14.0), state(12.0), state(running=0)])
    assert server.details == {"running": 2, "waiting": 0, "callers": 3, "silent_s": 12.0}
    assert stalled([server]) == [f"inference server {URL} has answered nothing for 12 s"]


def test_a_server_that_answers_another_caller_is_not_named():
    server = inference_server(URL, [state(14.0), state(version=3), state(version=4)])
    assert server.details["version"] == 4 and server.phase == "serving"
    assert stalled([server]) == []
