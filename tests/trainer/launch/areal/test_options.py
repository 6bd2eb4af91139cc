"""Every option of AReaL's reference has an outcome in a whole run, and none stops it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.errors import ConfigError
from atroposlib.settings.merge import assignments_of
from atroposlib.settings.yaml_file import read_yaml
from example_trainer.launch.areal import values
from example_trainer.launch.areal.options import (
    GROUP_OF,
    PLACES,
    TRAINER_TOO,
    given_options,
    group_of,
    is_areal,
    translate_options,
)
from example_trainer.launch.areal.values import WIRED, RunContext, server_options
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.settings.areal.names import Ignored, Unsupported
from example_trainer.settings.files import meaning_of, parse_override

REFERENCE = Path(__file__).parents[2] / "settings/areal/files/reference.yaml"
HEADS = {"env": "environment", "openai": "servers", "inference": "servers"}
KINDS = ("environment", "servers", "launcher", "trainer", "noted", "refused")
OF_ENVIRONMENT = (values.temperatures, values.lengths, values.dataset, values.evaluations)
# Section -> its options that each process takes, that are noted, and refused unless at default.
OUTCOMES = {
    "the run": (2, 0, 3, 3, 0, 1),
    "cluster": (0, 0, 3, 0, 1, 0),
    "train_dataset": (3, 0, 0, 2, 3, 0),
    "valid_dataset": (1, 0, 0, 0, 7, 0),
    "saver": (0, 0, 1, 3, 2, 0),
    "evaluator": (3, 0, 0, 0, 3, 0),
    "stats_logger": (0, 0, 1, 0, 2, 0),
    "recover": (0, 0, 0, 5, 3, 0),
    "sglang": (0, 45, 0, 0, 2, 0),
    "launcher": (0, 1, 5, 0, 0, 0),
    "scheduler": (0, 0, 0, 0, 5, 0),
    "gconfig": (5, 6, 0, 0, 0, 0),
    "rollout": (1, 2, 0, 2, 7, 0),
    "actor": (0, 0, 1, 42, 15, 1),
    "ref": (0, 0, 0, 1, 58, 0),
}


def outcome(one) -> str:
    if one.key in PLACES:
        return HEADS.get(PLACES[one.key].partition(".")[0], "launcher")
    group = group_of(one.key)
    if group is server_options:
        return "noted" if one.key.partition(".")[2] in WIRED else "servers"
    if group is not None:
        takers = {values.epochs: "trainer", **dict.fromkeys(OF_ENVIRONMENT, "environment")}
        return takers.get(group, "launcher")
    meaning = meaning_of(one)  # ConfigError if unknown
    names = {Ignored: "noted", Unsupported: "refused"}
    return names.get(type(meaning), "trainer")


def a_run(engine: str = "sglang") -> RunContext:
    fields = frozenset({*FunctionEnvConfig.model_fields, "dataset_path"})
    return RunContext(environment="gsm8k", fields=fields, engine=engine)


def plan_of(*words: str, engine: str = "sglang", reference: bool = False):
    assignments = [*assignments_of(read_yaml(REFERENCE))] if reference else []
    run = a_run(engine)
    given = given_options([*assignments, *map(parse_override, words)])
    return Plan(**translate_options(given, run)), run


def test_every_option_of_the_reference_has_an_outcome():
    found: dict[str, Counter] = {}
    for one in assignments_of(read_yaml(REFERENCE)):
        section = one.key.partition(".")[0] if "." in one.key else "the run"
        found.setdefault(section, Counter())[outcome(one)] += 1
    assert sum(counts.total() for counts in found.values()) == 251
    counted = {name: tuple(counts[kind] for kind in KINDS) for name, counts in found.items()}
    assert counted == OUTCOMES


def test_no_default_of_the_reference_stops_a_whole_run():
    plan, run = plan_of("experiment_name=a", "actor.path=m", reference=True)
    settings, cfg = trainer_settings(plan)
    assert (cfg.model_name, plan.inference.memory_share) == ("m", 0.9)
    assert "--attention-backend" in plan.inference.args
    keys = [key for keys in run.notes.values() for key in keys]
    assert len(keys) == len(set(keys))
    for one in assignments_of(read_yaml(REFERENCE)):
        Plan(**translate_options(given_options([one]), a_run()))


def test_options_of_one_file_reach_every_process():
    plan, run = plan_of(
        "actor.path=m",
        "tokenizer_path=t",
        "gconfig.n_samples=8",
        "gconfig.top_p=0.9",
        "gconfig.top_k=100000000",
        "gconfig.stop=[a, b]",
        "eval_gconfig.top_p=0.5",
        "rollout.max_concurrent_rollouts=32",
        "rollout.request_timeout=60.0",
        "rollout.setup_timeout=30",
        "launcher.trainer_env_vars='A=1,B=2'",
        "launcher.slurm.srun_additional_args='--mpi=pmi2 -K'",
        "stats_logger.wandb.mode=online",
    )
    config = plan.environments[0].config
    sampling = {
        "sampling": {"top_p": 0.9, "stop": ["a", "b"]},
        "eval_sampling": {"top_p": 0.5},
    }
    assert config["openai"] == {**sampling, "timeout": 60}
    env = {"group_size": 8, "tokenizer_name": "t", "max_num_workers": 32, "use_wandb": True}
    assert config["env"].items() >= env.items()
    assert (plan.inference.ready_within_s, plan.trainer.env["B"]) == (30.0, "2")
    assert plan.slurm.srun == ["--mpi=pmi2", "-K"]
    assert plan.trainer.settings["actor.path"] == "m" and run.notes == {}


def test_a_value_without_a_counterpart_names_its_option():
    with pytest.raises(
        ConfigError, match="^allocation_mode: sglang:d4.fsdp:d4: .* write . for"
    ):
        plan_of("allocation_mode=sglang:d4|fsdp:d4")


def test_a_file_with_an_actor_and_no_section_of_ours_is_areal_s():
    assert is_areal({"actor": {}, "gconfig": {}}) and is_areal({"model.path": "m"})
    assert not is_areal({"actor": {}, "trainer": {}}) and not is_areal({"lr": 1})


def test_every_option_of_the_tables_is_known():
    for key in [*PLACES, *GROUP_OF, *TRAINER_TOO]:
        meaning_of(parse_override(f"{key}=1"))
    assert TRAINER_TOO <= {*PLACES, *GROUP_OF}


CANDIDATES = [
    "true",
    "false",
    "3",
    "20",
    "0.37",
    "2.5",
    "x",
    "none",
    "group",
    "A=1",
    "sglang:d2",
]
BASE = ["actor.path=m", "gconfig.max_new_tokens=5", "total_train_epochs=1"]
# What each needs with it to have an effect, by the beginning of its name.
BESIDE = {
    "launcher.inference_server": ["allocation_mode=sglang:d1+fsdp:d1"],
    "launcher.trainer_": ["allocation_mode=sglang:d1+fsdp:d1"],
    "launcher.slurm.": [
        "launcher.slurm.trainer_image=a",
        "launcher.slurm.inference_server_image=b",
    ],
    "evaluator.": ["train_dataset.batch_size=1", "evaluator.freq_steps=1"],
    "cluster.": [
        "allocation_mode=sglang:d8+fsdp:d8",
        "cluster.n_nodes=1",
        "cluster.n_gpus_per_node=99",
    ],
}


def outcome_of(words):
    """The plan and its notes, or the error."""
    try:
        plan, run = plan_of(*words)
        return plan.model_dump(), run.notes
    except (ConfigError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize("key", sorted({*PLACES, *GROUP_OF} - TRAINER_TOO))
def test_every_option_that_a_process_takes_is_read(key):
    beside = next((more for name, more in BESIDE.items() if key.startswith(name)), [])
    beside = [word for word in BASE + beside if not word.startswith(f"{key}=")]
    given = [outcome_of([*beside, f"{key}={value}"]) for value in CANDIDATES]
    notes = [notes for _, notes in (each for each in given if isinstance(each, tuple))]
    is_noted = any(key in keys for keys in chain(*(each.values() for each in notes)))
    assert is_noted or any(each != given[0] for each in given)
