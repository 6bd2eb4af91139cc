"""Every option of AReaL's reference has an outcome, and whole files of AReaL are accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from atroposlib.api.server import create_app as api_app
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app as inference_app
from atroposlib.settings.merge import Assignment, assignments_of
from atroposlib.settings.yaml_file import read_yaml
from example_trainer import grpo
from example_trainer.settings.areal.names import Ignored, Unsupported
from example_trainer.settings.args import config_to_run
from example_trainer.settings.files import meaning_of, parse_override, translate
from tests.trainer.environment import running_environment

FILES = Path(__file__).parent / "files"
REFERENCE = [*assignments_of(read_yaml(FILES / "reference.yaml"))]
# Section -> options that are taken, noted and refused.
OUTCOMES = {
    "the run": (5, 3, 1),
    "actor": (42, 16, 1),
    "ref": (1, 58, 0),
    "rollout": (2, 10, 0),
    "gconfig": (1, 10, 0),
    "train_dataset": (2, 6, 0),
    "valid_dataset": (0, 8, 0),
    "saver": (4, 2, 0),
    "evaluator": (3, 3, 0),
    "recover": (5, 3, 0),
    "stats_logger": (1, 2, 0),
    "cluster": (1, 3, 0),
    "launcher": (0, 6, 0),
    "scheduler": (0, 5, 0),
    "sglang": (0, 47, 0),
}
# What a file of each kind becomes, in part.
KINDS: dict[str, dict[str, Any]] = {
    "grpo": {
        "advantage": "grpo",
        "loss": "ppo",
        "kl_coef": 0.01,
        "reference_model": "",
        "save_path": "/shared/experiments",
        "log_dir": "/shared/experiments/stats",
        "run_name": "countdown-grpo_first",
        "sequences_per_step": 256,
    },
    "ppo_critic": {
        "critic": True,
        "critic_model": "",
        "advantage": "gae",
        "critic_lr": 4e-6,
        "critic_clip_eps": 0.4,
    },
    "lora": {"lora": True, "lora_r": 8, "lora_target_modules": ["all-linear"]},
    "newer": {
        "advantage": "rloo",
        "weight_publisher": "distributed",
        "recover_mode": "auto",
        "save_path": "/shared/newer",
    },
    "decoupled_async": {
        "loss": "decoupled",
        "max_staleness": 8,
        "importance_weight": "mask",
        "save_path": "/shared/async",
    },
}


def section(one: Assignment) -> str:
    return one.key.partition(".")[0] if "." in one.key else "the run"


def test_every_option_of_the_reference_is_taken_noted_or_refused_by_name():
    found: dict[str, list[int]] = {name: [0, 0, 0] for name in OUTCOMES}
    for one in REFERENCE:
        meaning = meaning_of(one)  # ConfigError if unknown
        outcome = 1 if isinstance(meaning, Ignored) else 2 * isinstance(meaning, Unsupported)
        found[section(one)][outcome] += 1
    assert {name: tuple(counts) for name, counts in found.items()} == OUTCOMES
    assert len(REFERENCE) == 251


def test_no_default_of_the_reference_stops_a_run_alone_or_with_all_others():
    for one in REFERENCE:
        translate([one])
    whole = translate([*REFERENCE, parse_override("model_name=m")])
    assert (whole.values["model_name"], whole.values["advantage"]) == ("m", "reinforce_pp")


def test_what_belongs_elsewhere_is_listed_once_by_section():
    notes = translate(REFERENCE).notes
    assert any(note.startswith("sglang.* (") for note in notes)
    sections = Counter(note.partition(":")[2] for note in notes)
    assert len(notes) < 26 and set(sections.values()) == {1}


def command(kind: str, model: Path, *words: str) -> list[str]:
    return ["--config", str(FILES / f"{kind}.yaml"), f"actor.path={model}", *words]


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_accepted_up_to_the_loading_of_the_model(kind, model_dir, capsys):
    cfg = config_to_run(command(kind, model_dir))
    expected = {name: value or str(model_dir) for name, value in KINDS[kind].items()}
    assert {name: getattr(cfg, name) for name in expected} == expected
    assert "note: " in capsys.readouterr().err


@pytest.fixture
def servers(serve, model_dir) -> Iterator[tuple[str, str]]:
    engine = Engine(load_model(str(model_dir)), EngineLimits(), seed=0, num_threads=1)
    engine.start()
    yield serve(api_app()), serve(inference_app(engine))
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grpo", "ppo_critic"])
def test_a_file_of_areal_trains_two_steps(kind, servers, model_dir, tmp_path):
    api, server = servers
    words = [
        f"cluster.fileroot={tmp_path}",
        f"atropos_url={api}",
        f"inference_urls=[{server}]",
    ]
    words += ["total_train_steps=2", "train_dataset.batch_size=2", "gconfig.n_samples=4"]
    words += ["device=cpu", "actor.dtype=float32", "seq_len=64", "actor.optimizer.lr=1e-3"]
    with running_environment(api, server):
        grpo.train(config_to_run(command(kind, model_dir, *words)))
    status = httpx.get(f"{api}/status").json()
    assert (status["policy_version"], status["batches_acked"]) == (2, 2)
    assert (tmp_path / "final_model").is_dir()
