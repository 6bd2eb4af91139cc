from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atroposlib.quickstart.commands import commands_text, processes, thread_env
from atroposlib.quickstart.recipes import RECIPES, ServingEngine, recipe_for


def value_of(spec, flag):
    return spec.argv[spec.argv.index(flag) + 1]


@pytest.fixture
def by_name(plan):
    return {spec.name: spec for spec in processes(plan())}


def test_the_api_and_the_inference_server_start_before_their_clients(plan):
    names = [spec.name for spec in processes(plan())]
    assert names == ["api", "inference", "trainer", "environment"]


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
    trainer = {spec.name: spec for spec in processes(plan(model))}["trainer"]
    per_step = int(value_of(trainer, "--batch-size")) * int(
        value_of(trainer, "--gradient-accumulation-steps")
    )
    assert per_step == recipe.sequences_per_step == recipe.groups_per_step * recipe.group_size


def test_the_environment_and_the_trainer_alternate_and_may_use_every_core(by_name):
    assert value_of(by_name["environment"], "--env.max_batches_offpolicy") == "1"
    for name in ("trainer", "inference"):
        assert by_name[name].env["OMP_NUM_THREADS"] == "2"
        assert by_name[name].env["OMP_WAIT_POLICY"] == "PASSIVE"


def test_all_parts_are_given_the_same_addresses(plan, by_name):
    assert value_of(by_name["trainer"], "--atropos-url") == plan().api_url
    assert value_of(by_name["environment"], "--env.rollout_server_url") == plan().api_url
    assert value_of(by_name["trainer"], "--inference-urls") == plan().server_url
    assert value_of(by_name["environment"], "--openai.base_url") == f"{plan().server_url}/v1"


def test_server_and_trainer_compute_in_one_dtype_and_share_memory(plan):
    for dtype in ("float32", "bfloat16"):
        by_name = {one.name: one for one in processes(replace(plan(), dtype=dtype))}
        assert value_of(by_name["inference"], "--dtype") == dtype
        assert value_of(by_name["trainer"], "--dtype") == dtype
        assert value_of(by_name["trainer"], "--weight-publisher") == "shared_memory"


def test_the_trainer_checks_servers_by_its_own_limits(plan):
    for dtype in ("float32", "bfloat16"):
        by_name = {one.name: one for one in processes(replace(plan(), dtype=dtype))}
        assert "--max-logprob-mismatch" not in by_name["trainer"].argv


def test_vllm_runs_in_a_separate_python_and_serves_a_separate_model_copy(plan):
    local = plan(engine=ServingEngine.VLLM)
    vllm = replace(local, engine_python="venv/bin/python", serve_dir=Path("served"))
    server = {spec.name: spec for spec in processes(vllm)}["inference"]
    assert server.argv[0] == "venv/bin/python"
    assert value_of(server, "--model") == "served"
    assert value_of(server, "--served-model-name") == "models/start"
    assert value_of(server, "--logprobs-mode") == "processed_logprobs"
    assert value_of(server, "--generation-config") == "vllm"
    assert server.env["VLLM_SERVER_DEV_MODE"] == "1"


def test_no_process_is_given_zero_threads():
    assert thread_env(0)["OMP_NUM_THREADS"] == "1"


def test_commands_can_be_pasted_into_a_shell(plan):
    chosen = plan()
    text = commands_text(chosen, processes(chosen))
    lines = [line for line in text.splitlines() if line.startswith("cd ")]
    assert len(lines) == 4
    assert "&& HF_HUB_OFFLINE=1 " in lines[0]
    assert lines[0].endswith(f"--data-dir {chosen.options.out}/api")
