"""Names of environments in groups: from the API's status, asked once per new number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from atroposlib.wire import EnvShare
from example_trainer.run import environment_names
from example_trainer.run.environment_names import EnvironmentNames
from tests.trainer.rows import scored


class Api:
    def __init__(self, **names):
        self.names, self.asked = names, 0

    def status(self):
        self.asked += 1
        shares = [
            EnvShare(env_id=int(number[1:]), name=name, weight=1, asked=0, realised=0)
            for number, name in self.names.items()
        ]
        return SimpleNamespace(shares=shares)


def group(number, **fields):
    return scored([[5, 6]], 1, [1.0], env_id=number, **fields)


def test_processes_of_an_environment_share_its_name_and_each_number_is_asked_once():
    api = Api(e0="gsm8k_0", e1="gsm8k_1", e2="level_2", e3="level_2_0")
    names = EnvironmentNames(api, ["gsm8k", "level_2"])
    groups = [group(0, metadata={"metrics": {}}), group(1), group(2), group(3), group(None)]
    names.write_into(groups)
    found = [(g.metadata or {}).get("env") for g in groups]
    assert found == ["gsm8k", "gsm8k", "level_2", "level_2", None]
    assert groups[0].metadata["metrics"] == {}
    names.write_into([group(1)])
    assert api.asked == 1
    api.names["e4"] = "tools_0"
    late = group(4)
    names.write_into([late])
    assert api.asked == 2 and late.metadata == {"env": "tools"}


def test_without_algorithms_nothing_is_asked_and_groups_stay_as_they_came():
    api, untouched = Api(e0="gsm8k_0"), group(0)
    EnvironmentNames(api, []).write_into([untouched])
    assert api.asked == 0 and untouched.metadata is None


def test_a_name_that_no_environment_has_is_warned_of_with_the_nearest(monkeypatch):
    warned = []
    monkeypatch.setattr(environment_names, "warn_once", warned.append)
    EnvironmentNames(Api(e0="gsm8k_0"), ["gsm8"]).write_into([group(0)])
    [sentence] = warned
    assert sentence.startswith("algorithms.gsm8: no environment of this name has registered")
    assert "did you mean gsm8k?" in sentence


@pytest.mark.parametrize("number", [None, 9])
def test_a_group_of_no_known_environment_keeps_its_own_name(number):
    named = group(number, metadata={"env": "file"})
    EnvironmentNames(Api(e0="gsm8k_0"), ["gsm8k"]).write_into([named])
    assert named.metadata == {"env": "file"}
