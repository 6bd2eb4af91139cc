"""Registry of rewards: names, configurations, plain functions."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from atroposlib.envs.reward_fns import registry
from atroposlib.envs.reward_fns.registry import (
    LegacyFunctionWrapper,
    RewardRegistry,
    UnknownReward,
)
from atroposlib.errors import ConfigError
from tests.envs.reward_fns.toy_rewards import Fixed, Length

NAMES = {
    "accuracy": "AccuracyReward",
    "format": "FormatReward",
    "reasoning_steps": "ReasoningStepsReward",
    "repetition_penalty": "RepetitionPenaltyReward",
    "cosine_scaled": "CosineScaledReward",
    "crossword_format": "CrosswordFormatReward",
    "r1": "R1Reward",
    "cascading_r1_math": "LegacyFunctionWrapper",
    "chandas_meter": "ChandasMeterReward",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_registered_name_loads_its_reward(name):
    assert type(registry.create(name)).__name__ == NAMES[name]
    assert type(registry.create(name.replace("_", ""))).__name__ == NAMES[name]
    assert name in registry.list_registered()
    assert name.replace("_", "") in ("accuracy", "format", "r1", "combined") or (
        name.replace("_", "") not in registry.list_registered()
    )


def test_every_registered_name_loads_in_a_fresh_interpreter():
    program = (
        "import sys\n"
        "from atroposlib.envs.reward_fns import registry\n"
        "assert not {'torch', 'transformers', 'wandb', 'math_verify'} & set(sys.modules)\n"
        "print(type(registry.create(sys.argv[1])).__name__)\n"
    )
    for name in ("r1", "reasoning_steps"):
        done = subprocess.run(
            [sys.executable, "-c", program, name], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == NAMES[name]


@pytest.mark.parametrize(
    "name", ["../registry", "/etc/passwd", "os", "nothing", "registry", "math_worker", ""]
)
def test_only_rewards_of_the_package_are_loaded(name):
    for kind in (UnknownReward, ImportError, ConfigError):
        with pytest.raises(kind, match="there are accuracy"):
            registry.create(name)


def test_names_come_from_the_class_or_from_the_decorator():
    own = RewardRegistry()
    own.register(Length)
    own.register("other")(Length)
    own.register(name="third")(Length)

    @own.register
    class TinyReward(Length):
        pass

    own.register_function("plain", lambda completions: [1.0])
    assert own.list_registered() == ["length", "other", "plain", "third", "tiny"]
    assert own.get("tiny") is TinyReward


def test_a_configuration_overrides_the_defaults_and_passes_its_params():
    config = {"type": "accuracy", "weight": 2.0, "params": {"tolerance": 0.5}}
    reward = registry.create(config, weight=9.0, max_boxed_threshold=3)
    assert (reward.weight, reward.tolerance, reward.max_boxed_threshold) == (2.0, 0.5, 3)
    assert config == {"type": "accuracy", "weight": 2.0, "params": {"tolerance": 0.5}}
    for wrong in ({"weight": 1.0}, {"type": None}, {"type": "combined"}):
        with pytest.raises(ConfigError):
            registry.create(wrong)


def test_a_plain_function_becomes_a_reward():
    own = RewardRegistry()
    own.register_function(
        "longer",
        lambda completions, than=1, **kwargs: [
            float(len(text) > than) for text in completions
        ],
    )
    reward = own.create({"type": "longer", "params": {"than": 2}}, weight=3.0)
    assert isinstance(reward, LegacyFunctionWrapper)
    assert reward.name == "longer"
    assert reward(["ab", "abc"]) == [0.0, 3.0]
    assert reward(["ab"], than=1) == [3.0]


def test_a_custom_reward_is_kept_when_a_module_of_the_same_name_is_loaded():
    own = RewardRegistry()
    own.register("format")(Length)
    own.register(registry.get("format"))
    own.register("format")(registry.get("format"))
    assert own.get("format") is Length
    own.register("format")(Fixed)
    assert own.get("format") is Fixed


def test_requirements_of_a_configuration_are_loaded_or_reported_at_construction():
    registry.load_required_functions(["format", {"type": "r1"}])
    registry.load_required_functions(SimpleNamespace(reward_functions=["accuracy"]))
    registry.load_required_functions({"reward_functions": ["format"]})
    nested = {"type": "combined", "params": {"rewards": ["format", "nothing"]}}
    for config in ("nothing", ["nothing"], {"type": "nothing"}, nested):
        with pytest.raises(UnknownReward, match="nothing"):
            registry.load_required_functions(config)
