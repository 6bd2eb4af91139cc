"""Tests of cluster jobs: scripts, submission, exchange of addresses."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch import node, slurm
from example_trainer.launch.__main__ import main
from example_trainer.launch.plan import trainer_settings
from tests.trainer.launch.launch_plans import GSM8K, plan

GOLDEN_TRAINER = """\
#!/bin/bash
#SBATCH --job-name=gsm8k-trainer
#SBATCH --output=OUT/logs/%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --partition='gpu long'
#SBATCH --gpus-per-node=8
#SBATCH --exclusive

set -euo pipefail
source venv/bin/activate

JOBS=OUT/launch/jobs
FUNCTIONS

mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

while sleep 60 < /dev/null > /dev/null 2>&1; do
  squeue --noheader --states=PENDING --format="waiting for job %i (%j): %T, %r" \\
    --jobs="$(paste -sd, "$JOBS")" 2> /dev/null | grep -v Dependency >&2 || true
done & trap "kill $!" EXIT

for attempt in $(seq 0 3); do
  export ATROPOS_RUN_ID=$((attempt + ${SLURM_RESTART_COUNT:-0} + ${ATROPOS_CHAIN_LINK:-0}))
  step srun --kill-on-bad-exit=1 '--container-image=a b' python -m example_trainer.launch node \
--plan OUT/launch/plan.json --role trainer --meet "${NODES[0]}:$((20000 + SLURM_JOB_ID % 10000))"
  if [ "$status" = 0 ]; then over "trainer: done" 0; fi
  if [ "$status" = 2 ]; then over "trainer: refused" 2; fi
  if [ "$signalled" = USR1 ]; then again; fi
  if [ "$signalled" = TERM ]; then
    if is_cancelled; then over "trainer: cancelled" 1; fi
    exit "$status"
  fi
  echo "trainer: attempt $attempt of 3 failed" >&2
done
over "trainer: failed" 1
"""


GOLDEN_INFERENCE = """\
#!/bin/bash
#SBATCH --job-name=gsm8k-inference
#SBATCH --output=OUT/logs/%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --partition='gpu long'
#SBATCH --array=0-3
#SBATCH --gpus-per-node=2

set -euo pipefail
source venv/bin/activate

JOBS=OUT/launch/jobs
FUNCTIONS

for attempt in $(seq 0 3); do
  step srun '--container-image=a b' python -m example_trainer.launch node \
--plan OUT/launch/plan.json --role inference --index "${SLURM_ARRAY_TASK_ID:-0}"
  if [ "$signalled" = USR1 ]; then again; fi
  if [ "$signalled" = USR2 ]; then echo "the run is over" >&2; exit 0; fi
  if [ -n "$signalled" ] || [ "$status" = 0 ]; then exit "$status"; fi
  if [ "$status" = 2 ]; then over "$SLURM_JOB_NAME: refused" 2; fi
  echo "attempt $attempt of 3 failed ($status)" >&2
done
exit "$status"
"""


def test_scripts_equal_the_golden_files(cluster, tmp_path):
    cluster.inference.engine = "vllm"
    _, cfg = trainer_settings(cluster)
    jobs = {job.name: job for job in slurm.jobs(cluster, cfg.trainer_retries)}
    assert list(jobs) == ["api", "inference", "env-0-gsm8k_server", "trainer"]
    shown = {name: job.script.replace(str(tmp_path), "OUT") for name, job in jobs.items()}
    assert shown["trainer"] == GOLDEN_TRAINER.replace("FUNCTIONS", slurm.FUNCTIONS)
    assert shown["inference"] == GOLDEN_INFERENCE.replace("FUNCTIONS", slurm.FUNCTIONS)
    assert "--role environment --index 0" in shown["env-0-gsm8k_server"]
    assert jobs["trainer"].after == ("api", "inference")


def test_options_are_merged_one_by_one_and_gpus_are_asked_for_only_where_there_are_some(
    tmp_path,
):
    found = plan(
        *("inference.engine=local", "device=cpu", "slurm.api.mem=1G"),
        *("slurm.trainer.exclusive=null", "slurm.options.gpus=0"),
        out=tmp_path,
    )
    jobs = {job.name: job for job in slurm.jobs(found, 0)}
    assert (
        jobs["api"].options.items()
        >= {
            "slurm.api.mem": "1G",
            "slurm.api.cpus-per-task": "4",
        }.items()
    )
    for name in ("inference", "trainer"):
        assert "gpus" not in jobs[name].script and "exclusive" not in jobs[name].script


PROGRAMS = {
    # It ends as told, or is "preempted" or reaches its limit: its job gets the signal.
    "srun": """\
echo run $ATROPOS_RUN_ID >> calls
read -r what rest < ends; tail -n +2 ends > rest.new; mv rest.new ends
case $what in
  USR1|USR2|TERM) touch waiting; kill -$what $PPID; while [ -e waiting ]; do sleep 0.02; done; exit 75 ;;
  *) exit $what ;;
esac""",
    "scancel": """\
echo scancel "$@" >> calls
rm -f waiting""",
    "scontrol": """\
case $1 in
  requeue) echo requeue $2 >> calls ;;
  *) echo "node0 Restarts=$(cat restarts) x" ;;
esac""",
}


OTHERS = "|".join(
    f"scancel --quiet {words}101 102"
    for words in ("--state=PENDING ", "--batch --signal=USR2 ", "")
)


@pytest.mark.parametrize(
    "ends, restarts, status, calls",
    [
        ("0", 0, 0, f"run 0|{OTHERS}"),
        ("1 1 1", 0, 1, f"run 0|run 1|run 2|{OTHERS}"),
        ("1 0", 0, 0, f"run 0|run 1|{OTHERS}"),
        ("2", 0, 2, f"run 0|{OTHERS}"),
        ("USR1", 0, 75, "run 0|scancel --signal=TERM 7|requeue 7"),
        ("TERM", 1, 75, "run 0|scancel --signal=TERM 7"),
        ("TERM", 0, 1, f"run 0|scancel --signal=TERM 7|{OTHERS}"),
        ("USR1", 0, 75, "run 1|scancel --signal=TERM 7"),
    ],
    ids=[
        *("done", "failed", "failed once", "refused", "time limit", "preempted", "cancelled"),
        "chain",
    ],
)
def test_a_trainer_ends_the_other_jobs_only_when_the_run_is_over(
    request, tmp_path, ends, restarts, status, calls
):
    found = plan("slurm.setup=[]", out=tmp_path)
    script = slurm.jobs(found, 2)[-1].script
    link = {slurm.LINK: "1"} if "chain" in request.node.name else {}
    done = run_script(found, script, ends, restarts, link)
    assert done.returncode == status, done.stderr
    assert "|".join((tmp_path / "calls").read_text().splitlines()) == calls


@pytest.mark.parametrize(
    "ends, status, calls",
    [
        ("1 1 USR2", 0, "run|run|run|scancel --signal=TERM 7"),
        ("1 1 1 1 1", 1, "run|run|run|run"),
        ("0", 0, "run"),
        ("2", 2, f"run|{OTHERS}"),
        ("USR1", 75, "run|scancel --signal=TERM 7|requeue 7"),
    ],
    ids=["end of the run", "died too often", "done", "refused", "time limit"],
)
def test_a_process_that_died_is_started_again_in_its_job(tmp_path, ends, status, calls):
    found = plan("slurm.setup=[]", "restarts=3", out=tmp_path)
    done = run_script(found, slurm.jobs(found, 2)[0].script, ends)
    assert done.returncode == status, done.stderr
    said = "|".join(line.strip() for line in (tmp_path / "calls").read_text().splitlines())
    assert said == calls


def run_script(found, script, ends, restarts=0, env=None):
    """Run a job's script with programs of SLURM that note their calls in the run's folder."""
    folder = found.directory
    found.launched.mkdir()
    (found.launched / slurm.JOBS_FILE).write_text("101\n7\n102\n")
    (folder / "ends").write_text(ends.replace(" ", "\n") + "\n")
    (folder / "restarts").write_text(f"{restarts}\n")
    for name, body in PROGRAMS.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "job", "SLURM_JOB_NODELIST": ""}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={"PATH": f"{folder}/bin:/usr/bin:/bin", **job, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_several_servers_of_one_job_share_its_gpus(tmp_path):
    words = ("inference.engine=vllm", "inference.count=8", "inference.tensor_parallel=2")
    found = plan(*words, "slurm.servers_per_job=4", out=tmp_path)
    script = slurm.jobs(found, 0)[1].script
    assert "--array=0-1\n" in script and "--gpus-per-node=8\n" in script
    assert '--count 4 --index "$((${SLURM_ARRAY_TASK_ID:-0} * 4))"' in script
    assert node.gpus_at(found, 1, None) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert node.gpus_at(found, 1, "5,1,GPU-7,0") == {"CUDA_VISIBLE_DEVICES": "GPU-7,0"}
    with pytest.raises(ConfigError, match="slurm.servers_per_job: server 1 of 2 GPUs"):
        node.gpus_at(found, 1, "0,1,2")
    for more, named in (
        ("inference.count=6", "inference.count=6 is no multiple of slurm.servers_per_job=4"),
        ("slurm.inference.gpus-per-node=4", "slurm.inference.gpus-per-node=4 is too few"),
    ):
        with pytest.raises(ConfigError, match=named):
            slurm.jobs(plan(*words, "slurm.servers_per_job=4", more, out=tmp_path), 0)
    local = plan("inference.engine=local", "inference.count=2", out=tmp_path)
    assert node.gpus_at(local, 1, "0") == {}


def test_values_cannot_inject_shell_code(tmp_path):
    found = plan("slurm.srun=['; rm -rf x']", out=tmp_path / "a b")
    _, cfg = trainer_settings(found)
    script = slurm.jobs(found, cfg.trainer_retries)[0].script
    assert "'; rm -rf x'" in script and f"--plan '{tmp_path}/a b/launch/plan.json'" in script
    bad = plan('slurm.options.comment="x\\nsrun y"', out=tmp_path)
    with pytest.raises(ConfigError, match="#SBATCH"):
        slurm.jobs(bad, cfg.trainer_retries)


def fake_sbatch(folder: Path, monkeypatch, *, refuse: str = "") -> Path:
    """Programs sbatch and scancel that note how they were called."""
    calls = folder / "calls"
    for name in ("sbatch", "scancel"):
        script = folder / name
        script.write_text(f"#!{sys.executable} -S\n" + textwrap.dedent(f"""\
                import pathlib, sys
                file = pathlib.Path({str(calls)!r})
                with file.open("a") as out:
                    out.write(" ".join(["{name}", *sys.argv[1:]]) + "\\n")
                if {refuse!r} and {refuse!r} in sys.argv[-1]:
                    sys.exit("no such partition")
                print(100 + len(file.read_text().splitlines()), end=";cluster\\n")
                """))
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return calls


def test_jobs_are_submitted_in_order_and_the_trainer_gets_their_ids(
    cluster, tmp_path, monkeypatch
):
    calls = fake_sbatch(tmp_path, monkeypatch)
    _, cfg = trainer_settings(cluster)
    ids = slurm.submit(cluster, slurm.write(cluster, cfg.trainer_retries), lambda line: None)
    assert list(ids.values()) == ["101", "102", "103", "104"]
    folder = tmp_path / "launch"
    assert (folder / "jobs").read_text().split() == ["101", "102", "103", "104"]
    last = shlex.split(calls.read_text().splitlines()[-1])
    assert last[1:] == ["--parsable", "--dependency=after:101:102", f"{folder}/trainer.sbatch"]
    assert (folder / "token").stat().st_mode & 0o077 == 0


def test_links_of_a_chain_start_one_after_the_other_and_end_with_the_run(
    tmp_path, monkeypatch
):
    calls = fake_sbatch(tmp_path, monkeypatch)
    found = plan("slurm.chain=1", out=tmp_path)
    ids = slurm.submit(found, slurm.write(found, 0), lambda line: None)
    assert list(ids.values()) == ["101", "103", "105", "107"]
    said = [line.split()[2:-1] for line in calls.read_text().splitlines()]
    assert said[:2] == [
        ["--export=ALL,ATROPOS_CHAIN_LINK=0"],
        ["--export=ALL,ATROPOS_CHAIN_LINK=1", "--dependency=afterany:101"],
    ]
    assert [words[1] for words in said[-2:]] == [
        "--dependency=after:101:103",
        "--dependency=afterany:107",
    ]
    folder = tmp_path / "launch"
    # With both trainers: the one that ends the run cancels the other.
    assert (folder / "jobs").read_text().split() == [str(id) for id in range(101, 109)]
    script = (folder / "trainer.sbatch").read_text()
    assert "#SBATCH --no-requeue" in script and "--requeue" not in script.replace(
        "--no-req", ""
    )


def test_a_submission_anew_keeps_the_token_that_running_jobs_use(cluster):
    _, cfg = trainer_settings(cluster)
    slurm.write(cluster, cfg.trainer_retries)
    token = (cluster.launched / "token").read_text()
    slurm.write(cluster, cfg.trainer_retries)
    assert (cluster.launched / "token").read_text() == token


def test_a_refusal_names_the_setting(cluster):
    _, cfg = trainer_settings(cluster)
    [api, *_] = slurm.jobs(cluster, cfg.trainer_retries)
    said = "sbatch: error: Memory specification can not be satisfied (mem)"
    assert slurm.suspects(api, said) == "slurm.api.mem=16G"
    assert "slurm.options.partition=gpu long" in slurm.suspects(api, "no such thing")


def test_refused_job_cancels_the_submitted_ones(cluster, tmp_path, monkeypatch):
    calls = fake_sbatch(tmp_path, monkeypatch, refuse="env-0")
    _, cfg = trainer_settings(cluster)
    with pytest.raises(slurm.SubmitFailed, match="no such partition"):
        slurm.submit(cluster, slurm.write(cluster, cfg.trainer_retries), lambda line: None)
    assert calls.read_text().splitlines()[-1] == "scancel 101 102"


def test_a_dry_run_submits_nothing(tmp_path, monkeypatch, capsys):
    calls = fake_sbatch(tmp_path, monkeypatch)
    out = str(tmp_path / "run")
    assert main(["slurm", "--config", GSM8K, "--out", out, "--dry-run", "lr=1e-6"]) == 0
    assert not calls.exists()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"sbatch --parsable {out}/launch/api.sbatch"
    assert "'--dependency=after:<api>:<inference>'" in shown[-1]
    written = node.load_plan(f"{out}/launch/plan.json")
    assert written.trainer.settings["lr"] == 1e-6


def test_words_of_a_container_stand_in_front_of_its_role_s_command(tmp_path):
    image = "[apptainer, exec, a.sif]"
    found = plan(f"slurm.container.inference={image}", out=tmp_path)
    scripts = {job.name: job.script for job in slurm.jobs(found, 0)}
    assert "srun apptainer exec a.sif python -m" in scripts["inference"]
    assert "apptainer" not in scripts["trainer"]
