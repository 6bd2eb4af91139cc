"""A run out of one file: what is started, with which words, and what happens when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from atroposlib.processes import Children, ProcessSpec, RunFailed, StopRequest
from example_trainer import TrainingConfig
from example_trainer.launch import roles
from example_trainer.launch.__main__ import main
from example_trainer.launch.local import RestartPolicy, processes, supervise
from example_trainer.launch.plan import read_plan, trainer_settings
from example_trainer.launch.roles import Endpoints, ModelToServe, Ranks
from example_trainer.launch.servers import WORKER_EXTENSION, ServerCommand
from example_trainer.launch.single import server_process
from tests.trainer.launch_plans import GSM8K, plan

REPO = Path(__file__).resolve().parents[2]
AT = Endpoints("http://api:8000", ("http://a:9000", "http://b:9001"))


# --- the file ---------------------------------------------------------------------------


def test_overrides_reach_the_launcher_or_the_trainer(tmp_path):
    found = plan(
        "api.port=8001", "lr=3e-6", "actor.eps_clip=0.1", "trainer.nproc=2", out=tmp_path
    )
    assert (found.api.port, found.trainer.nproc, found.environments[0].count) == (8001, 2, 1)
    _, cfg = trainer_settings(found)
    assert (cfg.lr, cfg.clip_eps, cfg.clip_eps_high) == (3e-6, 0.1, 0.28)
    assert cfg.save_path == str(tmp_path / "checkpoints")


def test_a_later_file_is_put_over_an_earlier_one(tmp_path):
    more = tmp_path / "more.yaml"
    more.write_text("inference: {count: 3}\ntrainer: {settings: {actor.optimizer.lr: 1}}\n")
    found = read_plan([GSM8K, str(more)])
    assert (found.inference.count, found.inference.engine) == (3, "auto")
    _, cfg = trainer_settings(found)
    assert (cfg.lr, cfg.warmup_steps) == (1.0, 10)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("inference.cuont=2", "inference.cuont .*did you mean inference.count"),
        ("environments=[]", "environments"),
        ("environments=[{name: x}]", "either script or command"),
        ("api=5", "api"),
        ("lr=fast", "lr .*valid number"),
        ("learning_rate=1", "not a setting"),
    ],
)
def test_a_key_that_nobody_knows_is_refused_before_anything_starts(word, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        trainer_settings(plan(word, out=tmp_path))


def test_a_plan_that_cannot_be_used_ends_with_a_sentence_and_status_2(capsys):
    assert main(["local", "--config", "absent.yaml"]) == 2
    assert "atropos-launch: cannot read absent.yaml" in capsys.readouterr().err


# --- commands ---------------------------------------------------------------------------


def test_servers_are_started_with_what_publishing_needs():
    common = {"model": "m", "host": "127.0.0.1", "port": 9, "python": "py"}
    vllm = ServerCommand(
        "vllm", lora_rank=24, gpus="2,3", tensor_parallel=2, memory_share=0.5, **common
    )
    words = " ".join(vllm.argv)
    assert "--logprobs-mode processed_logprobs" in words and WORKER_EXTENSION in words
    assert "--enable-lora --max-lora-rank 32" in words
    assert "--gpu-memory-utilization 0.5" in words and "--tensor-parallel-size 2" in words
    assert vllm.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert vllm.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    local = ServerCommand("local", **{**common, "host": "0.0.0.0"})
    assert local.argv[:3] == ("py", "-m", "atroposlib.inference")
    assert local.argv[-1] == "--allow-remote"
    assert "--mem-fraction-static 0.5" in " ".join(
        ServerCommand("sglang", memory_share=0.5, **common).argv
    )


def test_a_script_is_told_where_everybody_is_and_its_own_settings_win(tmp_path):
    found = plan(out=tmp_path)
    _, cfg = trainer_settings(found)
    command = roles.environment(found, ModelToServe.of(cfg), "py", 0, AT)
    told = tmp_path / "launch" / "environment-0.yaml"
    assert command.argv == (
        ("py", "environments/gsm8k_server.py", "serve", "--config", str(told))
    )
    settings = json.loads(told.read_text())
    assert settings["env"]["rollout_server_url"] == "http://api:8000"
    assert settings["env"]["group_size"] == 8
    assert [server["base_url"] for server in settings["openai"]] == [
        "http://a:9000/v1",
        "http://b:9001/v1",
    ]


def test_another_program_has_the_addresses_filled_in(tmp_path):
    words = "[my-env, '{api_url}', '{inference_urls}', '{\"a\": 1}', '{model}']"
    found = plan(f"environments=[{{command: {words}}}]", out=tmp_path)
    _, cfg = trainer_settings(found)
    assert roles.environment(found, ModelToServe.of(cfg), "py", 0, AT).argv == (
        ("my-env", "http://api:8000", "http://a:9000,http://b:9001", '{"a": 1}')
        + ("Qwen/Qwen2.5-0.5B-Instruct",)
    )


@pytest.mark.parametrize(
    ("engine", "asked"),
    [("local", "m"), ("vllm", "gsm8k"), ("sglang", "m:gsm8k")],
)
def test_environments_ask_for_the_adapter_where_the_engine_wants_its_name(
    engine, asked, tmp_path
):
    lora = ("weight_publisher=lora", "model_name=m", f"inference.engine={engine}")
    found = plan(*lora, out=tmp_path)
    assert roles.served_name(found, ModelToServe.of(trainer_settings(found)[1])) == asked
    whole = plan("model_name=m", f"inference.engine={engine}", out=tmp_path)
    assert roles.served_name(whole, ModelToServe.of(trainer_settings(whole)[1])) == "m"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (Ranks(), "py -m example_trainer.grpo"),
        (
            Ranks(nproc=2),
            "py -m torch.distributed.run --standalone --nproc-per-node 2"
            " -m example_trainer.grpo",
        ),
        (
            Ranks(8, 2, "n1:29500", "77"),
            "py -m torch.distributed.run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d"
            " --rdzv-endpoint n1:29500 --rdzv-id 77 -m example_trainer.grpo",
        ),
    ],
)
def test_the_trainer_goes_through_torchrun_where_it_has_ranks(ranks, words, tmp_path):
    command = roles.trainer(plan(out=tmp_path), "py", AT, ranks)
    folder = tmp_path / "launch"
    files = f"--config {folder / 'wiring.yaml'} --config {folder / 'trainer.yaml'}"
    assert " ".join(command.argv) == f"{words} {files}"
    wiring = json.loads((folder / "wiring.yaml").read_text())
    assert wiring["atropos_url"] == "http://api:8000"
    assert wiring["inference_urls"] == ["http://a:9000", "http://b:9001"]


def test_every_process_of_this_machine_has_its_command(tmp_path):
    found = plan(
        "inference.count=2", "inference.engine=local", "inference.port=9100", out=tmp_path
    )
    _, cfg = trainer_settings(found)
    specs = {spec.name: spec for spec in processes(found, cfg)}
    assert list(specs) == [
        "api",
        "inference-0",
        "inference-1",
        "env-0-gsm8k_server",
        "trainer",
    ]
    assert specs["inference-1"].health_url == "http://127.0.0.1:9101/health"
    restartable = [name for name, spec in specs.items() if spec.restartable]
    assert restartable == ["api", "env-0-gsm8k_server"]


def test_the_original_s_command_starts_one_server_for_the_trainer():
    cfg = TrainingConfig(model_name="m", inference_engine="local", vllm_port=9123)
    spec = server_process(cfg)
    assert spec.health_url == "http://localhost:9123/health"
    assert spec.argv[1:3] == ("-m", "atroposlib.inference")
    with pytest.raises(ConfigError, match="use atropos-grpo"):
        server_process(TrainingConfig(model_name="m", inference_urls=["http://a:1"]))


# --- watching: stand-ins for the processes ----------------------------------------------

# argv: a file that counts the starts, then the exit code of each of them; the last sleeps on.
STAND_IN = """
import os, pathlib, sys, time
file = pathlib.Path(sys.argv[1])
with file.open("a") as out:
    out.write(os.environ.get("ATROPOS_RUN_ID", "-") + "\\n")
starts = len(file.read_text().splitlines())
if starts <= len(sys.argv) - 2:
    sys.exit(int(sys.argv[1 + starts]))
time.sleep(600)
"""


@pytest.fixture
def watch(tmp_path):
    """Run stand-ins to the end of the run; returns what was said and each one's starts."""

    def run(policy: RestartPolicy, **codes: list[int]):
        printed: list[str] = []
        specs = [
            ProcessSpec(
                name,
                (sys.executable, "-S", "-c", STAND_IN, str(tmp_path / name), *map(str, exits)),
                {"ATROPOS_RUN_ID": "0"} if name == "trainer" else {},
                tmp_path,
                restartable=name.startswith("env"),
            )
            for name, exits in codes.items()
        ]
        with Children(tmp_path / "logs") as children:
            try:
                supervise(specs, children, StopRequest(), policy, printed.append)
            except RunFailed as failure:
                printed.append(f"failed: {failure.line}")
        starts = {
            name: (tmp_path / name).read_text().split() if (tmp_path / name).exists() else []
            for name in codes
        }
        return printed, starts

    return run


def test_a_trainer_that_ends_well_ends_the_run(watch):
    printed, starts = watch(RestartPolicy(3, 3, 0.0), env=[], trainer=[0])
    assert (printed, starts["trainer"]) == ([], ["0"])


def test_a_trainer_that_fails_is_started_again_under_the_next_run_id(watch):
    printed, starts = watch(RestartPolicy(2, 3, 0.0), trainer=[1, 1, 0])
    assert starts["trainer"] == ["0", "1", "2"]
    assert printed[0] == "trainer failed (exit code 1); attempt 1 of 2 to recover"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_trainer_that_keeps_failing_fails_the_run(watch, retries):
    printed, starts = watch(RestartPolicy(retries, 3, 0.0), env=[], trainer=[1] * 5)
    assert len(starts["trainer"]) == retries + 1
    assert printed[-1].startswith(
        f"failed: trainer failed (exit code 1); it was started {retries + 1}"
    )


def test_a_dead_environment_comes_back_and_one_that_is_done_does_not(watch):
    printed, starts = watch(
        RestartPolicy(0, 1, 0.0), env_a=[3], env_b=[0], inference=[3], trainer=[]
    )
    assert len(starts["env_b"]) == 1 and len(starts["env_a"]) <= 2
    assert printed[-1].startswith(
        "failed: inference died (exit code 3); it was started 1 times"
    )


def test_with_a_dead_server_the_trainer_starts_anew(watch):
    printed, starts = watch(RestartPolicy(1, 0, 0.0), inference=[3, 3], trainer=[])
    assert len(starts["inference"]) == 2 and starts["trainer"][-1] in ("0", "1")
    assert printed[0] == "inference died (exit code 3); attempt 1 of 1 to recover"


@pytest.mark.parametrize(("mode", "retries"), [("auto", 2), ("fault", 2), ("disabled", 0)])
def test_only_modes_that_recover_start_a_trainer_again(mode, retries, tmp_path):
    found = plan(f"recover_mode={mode}", "recover_retries=2", out=tmp_path)
    _, cfg = trainer_settings(found)
    assert cfg.trainer_retries == retries


# --- the real thing ---------------------------------------------------------------------


@pytest.mark.slow
def test_one_file_starts_a_run_that_trains_and_ends(tmp_path, model_dir):
    one_core = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {"group_size": 4, "max_token_length": 64, "use_wandb": False}
    settings = {"model_name": str(model_dir), "device": "cpu", "optim.optimizer": "adamw"}
    settings |= {"seq_len": 64, "batch_size": 4, "gradient_accumulation_steps": 2}
    settings |= {"training_steps": 2, "actor.optimizer.lr": 1e-3, "checkpoint_interval": 0}
    described = {
        "out": str(tmp_path / "run"),
        "inference": {"engine": "local", "env": one_core},
        "environments": [
            {
                "script": str(REPO / "environments" / "copy_server.py"),
                "config": {"env": {**environment, "total_steps": 2}},
                "env": one_core,
            }
        ],
        "trainer": {"settings": settings, "env": one_core},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(described))
    command = [sys.executable, "-m", "example_trainer.launch", "local", "--config", "run.yaml"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("atropos: done; models in")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert (tmp_path / "run" / "checkpoints" / "final_model" / "config.json").exists()
