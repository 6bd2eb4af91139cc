"""Options of AReaL that several together, or a look at the run, turn into the plan."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.areal import values
from example_trainer.launch.areal.values import RunContext

FIELDS = frozenset({"dataset_path", "temperature", "eval_temperature", "max_tokens"})
GSM8K = "openai/gsm8k"


def a_run(**changes) -> RunContext:
    return RunContext(**{"environment": "gsm8k", "fields": FIELDS, **changes})


# function -> (options, places); keys of the options are joined by spaces.
CASES = [
    (values.temperatures, {"gconfig.temperature": 0.7}, {"env.temperature": 0.7}),
    (
        values.temperatures,
        {"gconfig.temperature": 0.7, "gconfig.greedy": True, "eval_gconfig.greedy": True},
        {"env.temperature": 0.0, "env.eval_temperature": 0.0},
    ),
    (
        values.lengths,
        {"gconfig.max_new_tokens": 100, "train_dataset.max_length": 50},
        {
            "env.max_tokens": 100,
            "openai.sampling.max_tokens": 100,
            "env.max_token_length": 150,
            "trainer.settings.seq_len": 150,
        },
    ),
    (
        values.lengths,
        {"train_dataset.max_length": 64},
        {"env.max_token_length": 64, "trainer.settings.seq_len": 64},
    ),
    (values.dataset, {"train_dataset.path": GSM8K}, {}),
    (
        values.evaluations,
        {"evaluator.freq_steps": 5, "evaluator.eval_before_train": True},
        {"env.steps_per_eval": 5, "env.eval_at_start": True},
    ),
    (
        values.evaluations,
        {"evaluator.freq_steps": 5, "valid_dataset": None},
        {"env.steps_per_eval": 0},
    ),
    (
        values.directories,
        {
            "experiment_name": "a",
            "trial_name": "b c",
            "cluster.fileroot": "/x",
            "saver.fileroot": "/x",
            "stats_logger.fileroot": "/y",
        },
        {
            "name": "a_b-c",
            "out": "/x/a/b c",
            "trainer.settings.stats_logger.fileroot": "/y",
        },
    ),
    (
        values.resources,
        {
            "allocation_mode": "sglang:d1t4+d2",
            "launcher.inference_server_cpus_per_gpu": 4,
            "launcher.inference_server_mem_per_gpu": 1000,
            "launcher.trainer_cpus_per_gpu": 3,
        },
        {
            "slurm.inference.cpus-per-task": 16,
            "k8s.resources.inference.cpu": 16,
            "ray.resources.inference.CPU": 16,
            "slurm.inference.mem": "4000M",
            "k8s.resources.inference.memory": "4000Mi",
            "ray.resources.inference.memory": 4000 * 2**20,
            "slurm.trainer.cpus-per-task": 6,
            "k8s.resources.trainer.cpu": 6,
            "ray.resources.trainer.CPU": 6,
        },
    ),
    (
        values.container,
        {
            "launcher.slurm.inference_server_image": "a.sif",
            "launcher.slurm.container_mounts": "/d:/d",
        },
        {"slurm.container.inference": "apptainer exec --nv --bind /d:/d a.sif".split()},
    ),
    (
        values.container,
        {"launcher.slurm.trainer_image": "a.sif", "launcher.slurm.container_type": "none"},
        {},
    ),
]


@pytest.mark.parametrize(("function", "given", "found"), CASES)
def test_options_become_places_of_the_plan(function, given, found):
    assert function(given, a_run()) == found


def test_epochs_end_the_run_where_the_rows_are_counted():
    given = {"train_dataset.batch_size": 4, "total_train_epochs": 3}
    found = values.epochs(given, a_run(rows=10))
    assert found == {
        "trainer.settings.steps_per_epoch": 2,
        "trainer.settings.training_steps": 6,
    }
    uncounted = a_run()
    assert values.epochs(given, uncounted) == {} and len(uncounted.notes) == 1
    assert "trainer.settings.training_steps" not in values.epochs(
        {**given, "total_train_steps": 9}, a_run(rows=10)
    )


SGLANG = {
    "actor.path": "m",
    "sglang.model_path": "m",
    "sglang.mem_fraction_static": 0.8,
    "sglang.disable_radix_cache": True,
    "sglang.enable_metrics": False,
    "sglang.cuda_graph_bs": [1, 2],
    "sglang.torchao_config": "",
    "sglang.tp_size": 2,
    "vllm.enforce_eager": True,
}


def test_servers_get_the_options_of_their_engine():
    run = a_run(engine="sglang")
    assert values.server_options(SGLANG, run) == {
        "inference.memory_share": 0.8,
        "inference.model": "m",
        "inference.args": ["--disable-radix-cache", "--cuda-graph-bs", "1", "2"],
    }
    assert [*run.notes.values()] == [["sglang.tp_size"], ["vllm.enforce_eager"]]
    assert values.server_options(SGLANG, a_run(engine="local")) == {"inference.args": []}


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("disable_log_requests", False, []),
        ("no_enable_prefix_caching", True, ["--no-enable-prefix-caching"]),
        ("hf_overrides", {"a": 1}, ["--hf-overrides", '{"a": 1}']),
        ("max_num_seqs", 256, ["--max-num-seqs", "256"]),
    ],
)
def test_false_can_be_said_to_vllm(name, value, found):
    assert values.argument("vllm", name, value) == found


def test_variables_are_written_with_equals_signs():
    assert values.variables("A=1, B=x=y") == {"A": "1", "B": "x=y"}
    with pytest.raises(ConfigError, match="B: variables are written A=1,B=2"):
        values.variables("A=1,B")


@pytest.mark.parametrize(
    ("given", "named", "found"),
    [
        ({"train_dataset.path": GSM8K}, None, "gsm8k"),
        ({"train_dataset.path": "/data/gsm8k_main/"}, None, "gsm8k"),
        ({"train_dataset.path": GSM8K}, "mine.py", "mine.py"),
        ({"train_dataset.path": "texts.jsonl", "model.path": "m"}, None, "sft_loader"),
        ({"train_dataset.type": "sft", "actor.path": "m"}, None, "sft_loader"),
        ({"train_dataset.path": GSM8K, "train_dataset.type": "sft"}, None, "sft_loader"),
    ],
)
def test_the_data_set_names_the_environment(given, named, found):
    assert values.environment_of(given, named) == found


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"train_dataset.path": "clevr"}, "write --env FILE or --env NAME"),
        ({"train_dataset.type": "rw"}, "atropos train rm"),
        ({"train_dataset.type": "dpo"}, "atropos train dpo"),
        ({"model.is_critic": True}, "atropos train rm"),
    ],
)
def test_an_unclear_environment_is_an_error_that_says_what_to_write(given, advice):
    with pytest.raises(ConfigError, match=advice):
        values.environment_of(given, None)


def test_data_that_the_environment_cannot_read_are_an_error_or_a_note():
    hub = {"train_dataset.path": "someone/gsm8k"}
    with pytest.raises(ConfigError, match="no file or folder someone/gsm8k"):
        values.dataset(hub, a_run())
    has_own = a_run(fields=frozenset())
    assert (
        values.dataset(hub, has_own) == {} and "no setting dataset_name" in [*has_own.notes][0]
    )
    named = a_run(fields=FIELDS | {"dataset_name"})
    assert values.dataset(hub, named) == {"env.dataset_name": "someone/gsm8k"}
    assert values.dataset(hub, a_run(data_is_local=True)) == {
        "env.dataset_path": "someone/gsm8k"
    }
