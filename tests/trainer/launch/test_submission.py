"""Tests of the submission of a run's jobs to SLURM."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from example_trainer.launch import node, slurm, submission
from example_trainer.launch.__main__ import main
from example_trainer.launch.plan import trainer_settings
from tests.trainer.launch.launch_plans import GSM8K, plan


def fake_sbatch(folder: Path, monkeypatch, *, refuse: str = "") -> Path:
    """Programs sbatch and scancel that note how they were called."""
    calls = folder / "calls"
    for name in ("sbatch", "scancel"):
        script = folder / name
        code = textwrap.dedent(f"""\
            import pathlib, sys
            file = pathlib.Path({str(calls)!r})
            with file.open("a") as out:
                out.write(" ".join(["{name}", *sys.argv[1:]]) + "\\n")
            if {refuse!r} and {refuse!r} in sys.argv[-1]:
                sys.exit("no such partition")
            print(100 + len(file.read_text().splitlines()), end=";cluster\\n")
            """)
        script.write_text(f"#!{sys.executable} -S\n" + code)
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return calls


def test_jobs_are_submitted_in_order_and_the_trainer_gets_their_ids(
    cluster, tmp_path, monkeypatch
):
    calls = fake_sbatch(tmp_path, monkeypatch)
    _, cfg = trainer_settings(cluster)
    ids = submission.submit(
        cluster, slurm.write(cluster, cfg.trainer_retries), lambda line: None
    )
    assert list(ids.values()) == ["101", "102", "103", "104"]
    folder = tmp_path / "launch"
    assert (folder / "jobs").read_text().split() == ["101", "102", "103", "104"]
    last = shlex.split(calls.read_text().splitlines()[-1])
    assert last[1:] == [
        "--parsable",
        "--dependency=after:101:102:103",
        f"{folder}/trainer.sbatch",
    ]
    assert (folder / "token").stat().st_mode & 0o077 == 0


def test_links_of_a_chain_start_one_after_the_other_and_end_with_the_run(
    tmp_path, monkeypatch
):
    calls = fake_sbatch(tmp_path, monkeypatch)
    found = plan("slurm.chain=1", out=tmp_path)
    ids = submission.submit(found, slurm.write(found, 0), lambda line: None)
    assert list(ids.values()) == ["101", "103", "105", "107"]
    said = [line.split()[2:-1] for line in calls.read_text().splitlines()]
    assert said[:2] == [
        ["--export=ALL,ATROPOS_CHAIN_LINK=0"],
        ["--export=ALL,ATROPOS_CHAIN_LINK=1", "--dependency=afterany:101"],
    ]
    assert [words[1] for words in said[-2:]] == [
        "--dependency=after:101:103:105",
        "--dependency=afterany:107",
    ]
    folder = tmp_path / "launch"
    # With both trainers: the one that ends the run cancels the other.
    assert (folder / "jobs").read_text().split() == [str(id) for id in range(101, 109)]
    script = (folder / "trainer.sbatch").read_text()
    assert "#SBATCH --no-requeue" in script and "--requeue" not in script.replace(
        "--no-req", ""
    )


def test_a_refusal_names_the_setting(cluster):
    _, cfg = trainer_settings(cluster)
    [api, *_] = slurm.jobs(cluster, cfg.trainer_retries)
    said = "sbatch: error: Memory specification can not be satisfied (mem)"
    assert submission.suspects(api, said) == "slurm.api.mem=16G"
    assert "slurm.options.partition=gpu long" in submission.suspects(api, "no such thing")


def test_refused_job_cancels_the_submitted_ones(cluster, tmp_path, monkeypatch):
    calls = fake_sbatch(tmp_path, monkeypatch, refuse="env-0")
    _, cfg = trainer_settings(cluster)
    with pytest.raises(submission.SubmitFailed, match="no such partition"):
        submission.submit(
            cluster, slurm.write(cluster, cfg.trainer_retries), lambda line: None
        )
    assert calls.read_text().splitlines()[-1] == "scancel 101"


def test_a_dry_run_submits_nothing(tmp_path, monkeypatch, capsys):
    calls = fake_sbatch(tmp_path, monkeypatch)
    out = str(tmp_path / "run")
    assert main(["slurm", "--config", GSM8K, "--out", out, "--dry-run", "lr=1e-6"]) == 0
    assert not calls.exists()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"sbatch --parsable {out}/launch/api.sbatch"
    assert "'--dependency=after:<api>:<env-0-gsm8k_server>:<inference>'" in shown[-1]
    written = node.load_plan(f"{out}/launch/plan.json")
    assert written.trainer.settings["lr"] == 1e-6


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["submitted", "only shown"])
def test_a_folder_whose_jobs_slurm_still_has_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, more
):
    calls = fake_sbatch(tmp_path, monkeypatch)
    command = ["slurm", "--config", GSM8K, "--out", str(tmp_path / "run"), *more]
    assert main(command[:5]) == 0
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 103\necho 102\n")
    squeue.chmod(0o755)
    before = {file: file.stat().st_ino for file in (tmp_path / "run/launch").rglob("*")}
    submitted = calls.read_text()
    assert main(command) == 2
    assert "scancel 102 103, or name another folder" in capsys.readouterr().err
    assert {
        file: file.stat().st_ino for file in (tmp_path / "run/launch").rglob("*")
    } == before
    assert calls.read_text() == submitted
    squeue.write_text("#!/bin/sh\nexit 1\n")  # of jobs that it has forgotten
    assert main(command) == 0
