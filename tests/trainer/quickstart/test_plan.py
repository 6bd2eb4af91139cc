from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch import local
from example_trainer.launch.gpus import GpuShares
from example_trainer.launch.plan import trainer_settings
from example_trainer.quickstart.plan import commands_text, launch_plan, thread_env, with_names
from example_trainer.quickstart.recipes import RECIPES, ServingEngine, recipe_for


def value_of(spec, flag):
    return spec.argv[spec.argv.index(flag) + 1]


def processes(start):
    return with_names(local.processes(launch_plan(start), GpuShares((None,))))


def trainer_of(start):
    return trainer_settings(launch_plan(start))[1]


@pytest.fixture
def by_name(plan):
    return {spec.name: spec for spec in processes(plan())}


def test_the_api_and_the_inference_server_start_before_their_clients(by_name):
    assert [*by_name] == ["api", "inference", "environment", "trainer"]


def test_every_process_runs_the_same_python_and_listens_on_the_loopback_interface(by_name):
    assert {spec.argv[0] for spec in by_name.values()} == {sys.executable}
    assert value_of(by_name["api"], "--host") == "127.0.0.1"
    assert value_of(by_name["inference"], "--host") == "127.0.0.1"


def test_only_the_api_and_the_environment_may_be_restarted_by_hand(by_name):
    assert {name for name, spec in by_name.items() if spec.restartable} == {
        "api",
        "environment",
    }


@pytest.mark.parametrize("model", RECIPES)
def test_a_batch_is_made_of_whole_groups_and_of_whole_forward_passes(plan, model):
    recipe = recipe_for(model)
    assert trainer_of(plan(model)).sequences_per_step == recipe.sequences_per_step
    assert recipe.sequences_per_step == recipe.groups_per_step * recipe.group_size


def test_the_environment_and_the_trainer_alternate_and_may_use_every_core(plan, by_name):
    [environment] = launch_plan(plan()).environments
    assert environment.config["env"]["max_batches_offpolicy"] == 1
    for name in ("trainer", "inference"):
        assert by_name[name].env["OMP_NUM_THREADS"] == "2"
        assert by_name[name].env["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_parts_listen_at_the_addresses_that_are_watched(plan, by_name):
    watched = plan().watched()
    assert f"http://127.0.0.1:{value_of(by_name['api'], '--port')}" == watched.api_url
    assert f"{watched.server_url}/health" == by_name["inference"].health_url
    assert trainer_of(plan()).metrics_file == watched.metrics_path


def test_server_and_trainer_compute_in_one_dtype_and_share_memory(plan):
    for dtype in ("float32", "bfloat16"):
        start = replace(plan(), dtype=dtype)
        by_name = {spec.name: spec for spec in processes(start)}
        assert by_name["inference"].argv.count("--dtype") == 1
        assert value_of(by_name["inference"], "--dtype") == dtype
        assert trainer_of(start).dtype == dtype
        assert trainer_of(start).publisher == "shared_memory"


def test_the_trainer_checks_servers_by_its_own_limits(plan):
    assert trainer_of(plan()).max_logprob_mismatch is None


def test_vllm_runs_in_a_separate_python_and_serves_a_separate_model_copy(plan):
    start = plan(engine=ServingEngine.VLLM)
    vllm = replace(start, engine_python="venv/bin/python", serve_dir=Path("served"))
    server = {spec.name: spec for spec in processes(vllm)}["inference"]
    command = server.argv[server.argv.index("--") + 1 :]
    assert (server.argv[0], command[0]) == (sys.executable, "venv/bin/python")
    assert value_of(server, "--model") == "served"
    assert "--served-model-name=models/start" in command
    assert value_of(server, "--logprobs-mode") == "processed_logprobs"
    assert value_of(server, "--generation-config") == "vllm"
    assert not {"--worker-extension-cls", "--hf-overrides"} & {*command}
    assert server.env["VLLM_SERVER_DEV_MODE"] == "1"
    [environment] = launch_plan(vllm).environments
    assert environment.config["openai"] == {"model_name": "models/start"}
    assert trainer_of(vllm).publisher == "disk"


def test_settings_of_the_trainer_replace_those_of_the_recipe_and_wrong_ones_are_named(plan):
    given = (("lr", "1e-5"), ("weight-publisher", "disk"))
    cfg = trainer_of(plan(trainer_settings=given))
    assert (cfg.lr, cfg.publisher, cfg.training_steps) == (
        1e-5,
        "disk",
        RECIPES["smollm2"].steps,
    )
    for name, value, words in (("lrr", "1", "lrr"), ("lr", "fast", "--trainer.lr")):
        with pytest.raises(ConfigError, match=words):
            trainer_of(plan(trainer_settings=((name, value),)))


def test_no_process_is_given_zero_threads():
    assert thread_env(0)["OMP_NUM_THREADS"] == "1"


def test_commands_can_be_pasted_into_a_shell(plan):
    chosen = plan()
    text = commands_text(chosen, processes(chosen))
    lines = [line for line in text.splitlines() if line.startswith("cd ")]
    assert len(lines) == 4
    assert "&& HF_HUB_OFFLINE=1 " in lines[0]
    assert lines[0].endswith(f"--data-dir {chosen.options.out}/queue")
