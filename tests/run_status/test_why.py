"""atropos why against real APIs in a stall, and on the folder of an ended run."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import pytest

from atroposlib.api.run import judge
from atroposlib.api.server import create_app
from atroposlib.cli.atropos import main as atropos
from atroposlib.errors import ConfigError
from atroposlib.run_status import polling, why
from tests.api.harness import ENV, TRAINER
from tests.serving import served

# Rules staged here, by a real API over HTTP; more in tests/api/run/test_judge.py.
STAGED = {
    *("api-silent", "no-trainer", "trainer-starting", "sizes-do-not-divide", "complete"),
    *("inference-silent", "rollouts-fail", "two-apis", "servers-paused", "versions-differ"),
}


@pytest.fixture(autouse=True)
def polls_follow_at_once(monkeypatch):
    monkeypatch.setattr(why, "APART_S", 0.0)
    monkeypatch.setattr(judge, "APART_S", 0.0)
    for name in ("API_TIMEOUT_S", "ELSEWHERE_TIMEOUT_S"):
        monkeypatch.setattr(polling, name, 600.0)


def findings(capsys, *words):
    status = why.main([*words, "--json", "--exit-code"])
    return status, json.loads(capsys.readouterr().out)


def keys(answer):
    return [one["key"] for one in answer["findings"]]


def group(sequences, **more):
    rows = {"tokens": [[1, 2]] * sequences, "masks": [[-100, 2]] * sequences}
    scores = [float(g) for g in range(sequences)]
    return {**rows, "scores": scores, "inference_logprobs": [[1.0, -0.5]] * sequences, **more}


class Stage:
    """A real API and the calls of its participants."""

    def __init__(self, url=""):
        self.url, self.now = url, 1000.0

    def post(self, path, body):
        reply = httpx.post(f"{self.url}{path}", json=body)
        reply.raise_for_status()
        return reply.json()

    def beat(self, role, phase, waiting_on=None, servers=(), **details):
        body = {"role": role, "name": f"{role}-0a1b2c", "phase": phase, "details": details}
        self.post("/heartbeat", {**body, "waiting_on": waiting_on, "servers": list(servers)})

    def begin(self, batch_size=8, **env):
        self.post("/register", TRAINER | {"batch_size": batch_size})
        httpx.get(f"{self.url}/batch")
        return self.post("/register-env", ENV | env)["env_id"]

    def rolls_out(self, server, seconds, details=(), **state):
        """A time in which an environment waits for this server and the trainer for a batch."""
        self.now += seconds
        self.beat("trainer", "waiting for batch")
        calls = {"url": f"{server}/v1", "running": 2, **state}
        self.beat("env", "rollout", servers=[calls], rollouts_running=2, **dict(details))


@pytest.fixture
def stage():
    made = Stage()
    with served(create_app(clock=lambda: made.now)) as made.url:
        yield made


def test_an_absent_api_is_status_3(capsys):
    status, answer = findings(capsys, "--api-url", "http://127.0.0.1:1")
    assert status == 3 and keys(answer) == ["api-silent"]


def test_a_run_without_a_trainer_waits_as_it_should(capsys, stage):
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 1 and keys(answer) == ["no-trainer"]


def test_a_starting_trainer_names_what_it_waits_for(capsys, stage):
    stage.beat("trainer", "waiting for inference servers", "inference server http://s")
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 1 and keys(answer) == ["trainer-starting"]
    assert "http://s" in answer["findings"][0]["evidence"][0]


def test_groups_that_no_batch_can_hold_name_the_next_size(capsys, stage):
    env = stage.begin(batch_size=8, group_size=3)
    stage.beat("trainer", "waiting for batch")
    stage.beat("env", "rollout", rollouts_running=3)
    for mark in range(3):
        stage.post("/scored_data", group(3, env_id=env, key=f"k-{mark}"))
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 2 and keys(answer)[0] == "sizes-do-not-divide"
    assert answer["findings"][0]["remedy"] == "the next batch size that works: 9"


def test_a_silent_server_is_named_by_its_address(capsys, stage):
    stage.begin()
    stage.beat("trainer", "waiting for batch")
    silent = {"url": "http://s:1/v1", "silent_s": 40.0, "running": 3}
    stage.beat("env", "rollout", servers=[silent], rollouts_running=3)
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 2 and keys(answer)[0] == "inference-silent"
    assert "http://s:1/v1" in answer["findings"][0]["evidence"][0]


def test_a_server_that_a_publish_left_paused_is_named(capsys, stage):
    stage.begin()
    stage.rolls_out("http://s:1", seconds=30, paused=True)
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 2 and keys(answer)[0] == "servers-paused"
    assert answer["findings"][0]["evidence"][0] == "http://s:1/v1: paused, 2 requests wait"


def test_a_server_with_old_weights_is_named_with_its_version(capsys, stage):
    stage.begin()
    stage.post("/policy_version", {"version": 3})
    stage.rolls_out("http://s:1", seconds=90, version=0, details={"oldest_rollout_s": 5.0})
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 0 and keys(answer) == ["versions-differ"]
    assert answer["findings"][0]["evidence"][0] == "http://s:1/v1: version 0"


def test_environments_at_another_api_than_their_trainer_learn_its_address(
    capsys, stage, monkeypatch
):
    stage.beat("env", "waiting for trainer")
    with served(create_app()) as other:
        Stage(other).begin()
        monkeypatch.setattr(polling, "DEFAULT_URL", other)
        status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 2 and keys(answer)[0] == "two-apis"
    assert f"{other}: STARTED" in answer["findings"][0]["evidence"]


def test_failures_in_a_row_show_the_last_error(capsys, stage):
    stage.begin()
    stage.beat("trainer", "waiting for batch")
    stage.beat("env", "rollout", failed_in_a_row=5, last_error="judge: \x1b[31m401")
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 2 and keys(answer)[0] == "rollouts-fail"
    assert why.main(["--api-url", stage.url]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and r"judge: \x1b[31m401" in shown and "    fix: " in shown


def test_a_finished_run_is_complete(capsys, stage):
    stage.begin()
    stage.beat("trainer", "done", ended=1)
    stage.beat("env", "draining")
    status, answer = findings(capsys, "--api-url", stage.url)
    assert status == 0 and keys(answer) == ["complete"] and answer["state"] == "done"


def test_an_ended_run_is_described_by_its_files(capsys, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 7, "reward_mean": 0.5}\n')
    (tmp_path / "logs/trainer.log").write_text("step 7\nCUDA error: out of memory\n")
    status, answer = findings(capsys, str(tmp_path))
    found = answer["findings"][0]
    assert status == 2 and found["key"] == "ended" and answer["state"] == "failed"
    assert "step 7, reward_mean 0.5" in found["evidence"]
    assert "trainer.log: CUDA error: out of memory" in found["evidence"]


def test_an_api_that_refuses_the_caller_is_not_an_ended_run(capsys, tmp_path, monkeypatch):
    def refuse(url, timeout_s, token=None):
        raise polling.Silent("status 401: no token")

    (tmp_path / "commands.txt").write_text("x --atropos-url http://127.0.0.1:41 \n")
    monkeypatch.setattr(polling, "get", refuse)
    assert why.main([str(tmp_path), "--exit-code"]) == 3
    assert "wants a token" in capsys.readouterr().out


def test_a_folder_that_is_none_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        why.main([str(tmp_path / "none")])


def test_the_command_loads_neither_pydantic_nor_httpx():
    code = (
        "import sys\nfrom atroposlib.run_status import why\n"
        "try: why.main(['--api-url', 'http://127.0.0.1:1'])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("stuck: the rollout API")
    assert not {"pydantic", "httpx", "torch", "numpy", "fastapi"} & {*done.stderr.split()}


def test_the_command_is_reached_by_its_name(capsys):
    with pytest.raises(SystemExit) as ended:
        atropos(["why", "--api-url", "http://127.0.0.1:1", "--exit-code"])
    assert ended.value.code == 3 and "refused" in capsys.readouterr().out
