from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from example_trainer.launch import node, slurm
from example_trainer.launch.plan import trainer_settings
from example_trainer.launch.roles import Endpoints
from example_trainer.state import end
from tests.client.harness import announced, served_api
from tests.trainer.launch.launch_plans import plan

REPO = Path(__file__).resolve().parents[3]
# In place of the interpreter: a server that dies at its first start, then serves until TERM. The
# lines of all servers go into one pipe.
SERVER = """\
#!/bin/bash
trap 'echo ended > {pipe}; exit 0' TERM
echo "$(grep -o 'inference-[0-9]' <<< "$*" | head -1) on $CUDA_VISIBLE_DEVICES" > {pipe}
[ -e {folder}/died-$CUDA_VISIBLE_DEVICES ] || {{ touch {folder}/died-$CUDA_VISIBLE_DEVICES; exit 1; }}
while sleep 0.1; do :; done
"""


@pytest.fixture
def written(cluster):
    slurm.write(cluster, trainer_settings(cluster)[1].trainer_retries)
    return cluster


def test_only_the_address_of_the_api_travels_as_a_file(written, tmp_path):
    here = {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "55"}
    server = node.command_of(written, "inference", 1, None, here)
    assert (
        f"--api file://{tmp_path}/launch/endpoints/api --name inference-1 --url http://n7:"
        in (" ".join(server.argv))
    )
    api = node.command_of(written, "api", 0, None, here)
    assert api.argv[-3:] == ("--tokens", f"{tmp_path}/launch/tokens", "--insecure-plaintext")
    assert [one.name for one in (tmp_path / "launch" / "endpoints").iterdir()] == ["api"]
    trainer = node.command_of(written, "trainer", 0, "n1:29500", here)
    assert " ".join(trainer.argv).count("--rdzv-endpoint n1:29500 --rdzv-id 55") == 1


def test_a_pod_with_an_address_of_ipv6_listens_on_it_and_has_brackets_in_its_url(
    written, tmp_path
):
    here = {"ATROPOS_HOST": "fd00::7", "ATROPOS_POD_PORT": "8000"}
    api = " ".join(node.command_of(written, "api", 0, None, here).argv)
    assert "--host :: --port 8000 " in api
    assert (tmp_path / "launch/endpoints/api").read_text() == "http://[fd00::7]:8000\n"
    written.inference.port = 9100
    server = " ".join(node.command_of(written, "inference", 1, None, here).argv)
    assert "--url http://[fd00::7]:8000 " in server and "--host ::" in server


def test_an_api_without_an_address_is_named_in_the_timeout_error(cluster, tmp_path):
    cluster.slurm.wait_s = 0.01
    with pytest.raises(node.EndpointTimeout, match="the address of the API"):
        node.endpoints(cluster, tmp_path / "absent", sleep=lambda seconds: None)


def test_a_command_gets_the_addresses_of_the_servers_that_the_api_lists(written):
    with (
        served_api() as api,
        announced(api, "inference-0", api),
    ):  # the API answers /health, too
        written.inference.min_ready = 1
        assert node.listed_servers(written, Endpoints(api)) == (api,)
        written.inference.min_ready, written.slurm.wait_s = 2, 0.01
        with pytest.raises(node.EndpointTimeout, match="the inference servers"):
            node.listed_servers(written, Endpoints(api), sleep=lambda seconds: None)


def test_servers_of_one_job_are_started_again_one_by_one_and_end_with_it(tmp_path):
    pipe, server = tmp_path / "lines", tmp_path / "python"
    os.mkfifo(pipe)
    server.write_text(SERVER.format(pipe=pipe, folder=tmp_path))
    server.chmod(0o755)
    found = plan(
        *("inference.engine=vllm", "inference.count=4", "slurm.servers_per_job=2"),
        *("restart_delay_s=0", f"slurm.python={server}"),
        out=tmp_path / "run",
    )
    slurm.write(found, 0)
    own = ("--plan", str(slurm.plan_path(found)), "--role", "inference", "--index", "2")
    job = subprocess.Popen(
        [sys.executable, "-m", "example_trainer.launch", "node", *own, "--count", "2"],
        cwd=REPO,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "4,6"},
        stdout=subprocess.PIPE,
        text=True,
    )
    both = os.open(pipe, os.O_RDWR)  # stays open between the writers
    with os.fdopen(both) as lines:
        started = sorted(lines.readline().strip() for _ in range(4))
        assert started == ["inference-2 on 4"] * 2 + ["inference-3 on 6"] * 2
        job.terminate()
        assert [lines.readline() for _ in range(2)] == ["ended\n"] * 2
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0 and "stopped by SIGTERM, the servers end" in said


TRAINER = """
import os, signal, sys, time
{body}
if {records}:
    open(os.environ["ATROPOS_RUN_END"], "w").close()
sys.exit({status})
"""


@pytest.mark.parametrize(
    ("body", "records", "status", "expected"),
    [
        ("", True, 0, 0),
        ("", False, 0, 1),  # a status that came from another process
        ("", False, 75, 75),
        ("os.kill(os.getpid(), 9)", False, 0, 137),
        ("signal.signal(15, lambda *_: sys.exit(75)); os.kill(os.getppid(), 15); time.sleep(600)",
         False, 0, 75),
    ],
    ids=["recorded", "unrecorded", "failed", "killed", "stopped"],
)  # fmt: skip
def test_the_trainer_of_a_pod_is_done_by_its_own_record_only(
    written, monkeypatch, body, records, status, expected
):
    code = TRAINER.format(body=body, records=records, status=status)
    env = {"ATROPOS_RUN_END": str(written.end_record)}
    command = node.Command((sys.executable, "-c", code), env)
    monkeypatch.setattr(node, "command_of", lambda *given: command)
    monkeypatch.setattr(node, "RECORD_S", 0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = node.run_role(written, "trainer", 0, None)
        assert node.recorded_status(written, status) == expected
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (("7", None), ("7", "1")),
        (("7", "9"), ("7", "10")),  # numbers, and no text
        (("99", None), ("100", None)),  # the next link of a chain, or a job submitted anew
    ],
)
def test_the_latest_start_of_a_job_has_the_place_of_its_role(tmp_path, earlier, later):
    found = plan(out=tmp_path)

    def start(job, restarts, index="0"):
        env = {"SLURM_JOB_ID": job, "SLURM_ARRAY_TASK_ID": index}
        env |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
        return node.take_place(found, "api-0", env)

    lost = [start(*earlier), start(*earlier, index="1"), start(*later), start(*earlier)]
    assert [is_lost() for is_lost in lost] == [True, False, False, True]
    assert not node.take_place(found, "api-0", {})()  # outside SLURM


@pytest.mark.parametrize("taken", ["before", "meanwhile"])
def test_a_role_whose_job_has_started_again_elsewhere_ends(written, monkeypatch, taken):
    command = node.Command((sys.executable, "-c", "import time; time.sleep(600)"), {})
    monkeypatch.setattr(node, "command_of", lambda *given: command)
    monkeypatch.setattr(node, "PLACE_S", 0.05)
    monkeypatch.setattr(node, "on_signals", lambda *given: later.write_text("7 1\n"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    later = written.launched / node.PLACES / "api-0-0"
    if taken == "before":
        later.parent.mkdir()
        later.write_text("7 1\n")
    assert node.run_role(written, "api", 0, None) == 75
    assert later.read_text() == "7 1\n"


def test_the_last_environment_to_end_tells_the_trainer_that_no_groups_come(
    tmp_path, monkeypatch
):
    found = plan(out=tmp_path)
    found.environments[0].count = 2
    slurm.write(found, 0)
    statuses = {"0-0": 1, "0-1": 0}

    def command(*_given):
        return node.Command((sys.executable, "-c", f"exit({statuses[copy]})"), {})

    monkeypatch.setattr(node, "command_of", command)
    monkeypatch.setattr(node, "on_signals", lambda *given: None)
    monkeypatch.setattr(node.StopRequest, "listen", lambda self: None)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    told = found.end_record.with_name(end.NO_MORE_GROUPS)
    with served_api() as api:
        (found.launched / slurm.ENDPOINTS / "api").write_text(f"{api}\n")
        for copy, expected in (("0-1", 0), ("0-0", 1), ("0-0", 1)):
            monkeypatch.setenv("SLURM_ARRAY_TASK_ID", copy[-1])
            assert node.run_role(found, "environment", 0, None) == expected
            assert not told.exists()
        statuses["0-0"] = 0
        assert node.run_role(found, "environment", 0, None) == 0
        assert told.exists()
    statuses["0-0"] = 1  # the next job of a chain does not start it again
    with served_api() as api:
        (found.launched / slurm.ENDPOINTS / "api").write_text(f"{api}\n")
        assert node.run_role(found, "environment", 0, None) == 0
    slurm.write(found, 0)
    assert not told.exists() and not end.environments_ended(found.end_record)


PARENT = """
import sys
from example_trainer.launch import node
node.command_of = lambda *given: node.Command((sys.executable, "-c", {child!r}), {{}})
node._given_variables = lambda plan, command: {{}}
node.run_role(None, "api", 0, None)
"""
CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the child")
def test_the_role_ends_with_its_parent_however_that_dies():
    words = [sys.executable, "-c", PARENT.format(child=CHILD)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=REPO) as parent:
        assert parent.stdout.readline().startswith("api: ")
        assert int(parent.stdout.readline()) > 1
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == ""  # its end: the child, which holds the pipe, is gone
