"""Tests of cluster jobs: scripts, submission, exchange of addresses."""

from __future__ import annotations

import subprocess

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch import node, roles, slurm
from example_trainer.launch.plan import trainer_settings
from example_trainer.launch.teachers.section import TeacherSection
from tests.trainer.launch.launch_plans import plan


@pytest.mark.parametrize("given", ["a:geheim@db/a", "db/a?user=a&password=geheim"])
def test_a_password_of_the_store_lies_in_a_file_of_its_own(tmp_path, given):
    of = plan(f"store=postgresql://{given}", out=tmp_path)
    slurm.write(of, 0)
    held = {path.name: path.read_text() for path in of.launched.iterdir() if path.is_file()}
    assert [name for name, text in held.items() if "geheim" in text] == ["store"]
    assert (of.launched / "store").stat().st_mode & 0o077 == 0
    read = node.load_plan(slurm.plan_path(of))
    assert roles.store_of(read) == f"postgresql://{given}"
    of.store = "postgresql://a:${DB_PASSWORD}@db/a"
    slurm.write(of, 0)
    assert not (of.launched / "store").exists()
    assert node.load_plan(slurm.plan_path(of)).store == of.store


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

for attempt in $(seq 0 3); do
  export ATROPOS_RUN_ID=$((attempt + ${SLURM_RESTART_COUNT:-0} + ${ATROPOS_CHAIN_LINK:-0}))
  step srun --kill-on-bad-exit=1 '--container-image=a b' python -m example_trainer.launch node \
--plan OUT/launch/plan.json --role trainer --meet "${NODES[0]}:$((20000 + SLURM_JOB_ID % 10000))"
  if [ "$status" = 0 ] && [ -e OUT/launch/ended.json ]; then over "trainer: done" 0; fi
  if [ "$status" = 2 ]; then over "trainer: refused" 2; fi
  if [ "$signalled" = USR1 ]; then again; fi
  if [ "$signalled" = TERM ]; then
    if is_current; then over "trainer: cancelled" 1; fi
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
  # A process that SLURM has lost holds its lock for half a minute.
  if [ "$attempt" -lt 3 ]; then pause $((attempt * 15 + 1)); fi
done
exit "$status"
"""


def test_scripts_equal_the_golden_files(cluster, tmp_path):
    cluster.inference.engine = "vllm"
    _, cfg = trainer_settings(cluster)
    jobs = {job.name: job for job in slurm.jobs(cluster, cfg.trainer_retries)}
    assert list(jobs) == ["api", "env-0-gsm8k_server", "inference", "trainer"]
    shown = {name: job.script.replace(str(tmp_path), "OUT") for name, job in jobs.items()}
    assert shown["trainer"] == GOLDEN_TRAINER.replace("FUNCTIONS", slurm.FUNCTIONS)
    assert shown["inference"] == GOLDEN_INFERENCE.replace("FUNCTIONS", slurm.FUNCTIONS)
    assert "--role environment --index 0" in shown["env-0-gsm8k_server"]
    assert jobs["inference"].after == ("api", "env-0-gsm8k_server")
    assert jobs["trainer"].after == ("api", "env-0-gsm8k_server", "inference")


def test_gpus_wait_for_the_start_of_every_job_that_can_start_without_servers(cluster):
    by_name = [cluster.environments[0].model_copy() for _ in range(2)]
    by_name[0].name, by_name[0].script = "early", None
    by_name[0].command = ["run", "{api_url}"]
    by_name[1].name, by_name[1].script = "late", None
    by_name[1].command = ["run", "--servers={inference_urls}"]
    cluster.environments = by_name
    after = {job.name: job.after for job in slurm.jobs(cluster, 0)}
    assert after == {
        "api": (),
        "env-0-early": ("api",),
        "inference": ("api", "env-0-early"),
        "env-1-late": ("api", "inference"),
        "trainer": ("api", "env-0-early", "inference", "env-1-late"),
    }


def test_a_teacher_is_a_job_that_its_environment_waits_for(cluster):
    cluster.teachers = {"big": TeacherSection(model="M", engine="vllm", tensor_parallel=4)}
    cluster.environments[0].config = {"env": {"teacher": {"base_url": "big"}}}
    cluster.slurm.teachers = {"constraint": "h200"}
    jobs = {job.name: job for job in slurm.jobs(cluster, 0)}
    assert {name: job.after for name, job in jobs.items()} == {
        "api": (),
        "inference": ("api",),
        "teacher-big": ("api",),
        "env-0-gsm8k_server": ("api", "teacher-big"),
        "trainer": ("api", "inference", "teacher-big", "env-0-gsm8k_server"),
    }
    script = jobs["teacher-big"].script
    assert "#SBATCH --gpus-per-node=4" in script and "#SBATCH --constraint=h200" in script
    assert "--role teacher --index 0" in script and "attempt $attempt of 3 failed" in script


def test_the_api_s_log_names_jobs_that_wait_once_a_minute(cluster):
    [api, *others] = slurm.jobs(cluster, 0)
    assert "while sleep 60 <" in api.script and '%T, %r" \\\n    --jobs="$(paste' in api.script
    assert not any("squeue --noheader --states=PENDING" in job.script for job in others)


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
  lost) echo 1 > restarts; exit 0 ;; # of a node that is lost while the trainer lives
  0) touch launch/ended.json; exit 0 ;; # as the trainer, at its end
  *) exit $what ;;
esac""",
    "scancel": """\
echo scancel "$@" >> calls
rm -f waiting""",
    "scontrol": """\
case $1 in
  requeue) echo requeue $2 >> calls ;;
  --oneliner) # the first question gets no answer where a test says so
    [ ! -e cut ] || { rm cut; echo "Unable to contact slurm controller"; exit 1; }
    echo "JobState=RUNNING Restarts=$(cat restarts) x" ;;
  *) echo node0 ;;
esac""",
    # Between two attempts of a process; the minute between two lines about waiting jobs is real.
    "sleep": """if [ "$1" = 60 ]; then exec /bin/sleep 60; fi
echo pause $1 >> pauses""",
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
        ("lost 1 1", 0, 75, "run 0|run 1|run 2"),
        ("lost 0", 0, 75, "run 0|run 1"),
        ("USR1", 0, 75, "run 1|scancel --signal=TERM 7"),
    ],
    ids=[
        *("done", "failed", "failed once", "refused", "time limit", "preempted", "cancelled"),
        *("node lost", "node lost, then done"),
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


def test_a_run_that_is_over_in_a_cut_from_the_controller_ends_the_other_jobs_after_it(
    tmp_path,
):
    found = plan("slurm.setup=[]", out=tmp_path)
    (tmp_path / "cut").touch()
    done = run_script(found, slurm.jobs(found, 2)[-1].script, "0")
    assert "SLURM's controller does not answer: asking again in 10 s" in done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode == 0 and "|".join(calls) == f"run 0|{OTHERS}"


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
    pauses = tmp_path / "pauses"  # none after the last attempt
    if said == "run|run|run|run":
        assert pauses.read_text().split() == ["pause", "1", "pause", "16", "pause", "31"]
    if said == "run":
        assert not pauses.exists()


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
    script = slurm.jobs(found, 0)[-2].script
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


def test_a_submission_anew_keeps_the_token_that_running_jobs_use(cluster):
    _, cfg = trainer_settings(cluster)
    slurm.write(cluster, cfg.trainer_retries)
    token = (cluster.launched / "token").read_text()
    slurm.write(cluster, cfg.trainer_retries)
    assert (cluster.launched / "token").read_text() == token


def test_words_of_a_container_stand_in_front_of_its_role_s_command(tmp_path):
    image = "[apptainer, exec, a.sif]"
    found = plan(f"slurm.container.inference={image}", out=tmp_path)
    scripts = {job.name: job.script for job in slurm.jobs(found, 0)}
    assert "srun apptainer exec a.sif python -m" in scripts["inference"]
    assert "apptainer" not in scripts["trainer"]
