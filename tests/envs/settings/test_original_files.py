"""YAML files as the original ships them for its environments, with keys that nothing reads."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import create_model

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.cli import read_settings
from atroposlib.errors import ConfigError

FILES = Path(__file__).parent / "files"
ROWS = {"dataset_name": "", "prompt_field": "", "answer_field": "", "reward_functions": ["x"]}
# File -> settings of its environment besides those of every environment.
OWN: dict[str, dict[str, Any]] = {
    "gsm8k_example": {},
    "word_hunt": {"board_size": 4},
    "dataset_rows": ROWS,
    "dataset_instructions": ROWS,
    "dataset_chats": ROWS,
    "tool_reasoning": {},
    "chain_transactions": {"question_kinds": ["transfer"]},
    "letter_counting": {"min_word_length": 1, "difficulty": {"easy": 1.0}},
    "packaged_tasks": {"package": "", "env_args": {"split": ""}},
    "clean": {},
}
# File -> its warnings, each with the nearest key if one is near.
WARNED = {
    "gsm8k_example": ["openai.0.weight is no setting", "openai.1.weight is no setting"],
    "word_hunt": ["env.env_name is no setting; did you mean"],
    "dataset_rows": [
        "tokenizer_name is no setting; did you mean env.tokenizer_name or openai"
    ],
    "dataset_instructions": [
        "tokenizer_name is no setting; did you mean env.tokenizer_name or openai"
    ],
    "dataset_chats": [
        "tokenizer_name is no setting; did you mean env.tokenizer_name or openai"
    ],
    "tool_reasoning": ["env.start_tok_length is no setting; did you mean"],
    "chain_transactions": ["network is no setting"],
    "clean": [],
}
REFUSED = {
    "letter_counting": "env.total_steps should be a whole number, not None",
    "packaged_tasks": "env.env_args should be a mapping, not .'split', 'train'.",
}
# A value of each that reached the environment.
READ = {
    "gsm8k_example": ("total_steps", 2000),
    "word_hunt": ("board_size", 5),
    "dataset_rows": ("dataset_name", "gsm8k"),
    "dataset_instructions": ("answer_field", "output"),
    "dataset_chats": ("prompt_field", "prompt"),
    "tool_reasoning": ("eval_limit_ratio", 0.25),
    "chain_transactions": ("question_kinds", ["transfer", "balance"]),
    "clean": ("min_items_sent_before_logging", 2),
}


def read(name: str, *words: str):
    fields: dict[str, Any] = {key: (type(value), value) for key, value in OWN[name].items()}
    config = create_model("Config", __base__=BaseEnvConfig, **fields)

    class Env(BaseEnv):
        env_config_cls = config

        @classmethod
        def config_init(cls):
            return config(), APIServerConfig(base_url="http://a/v1")

        async def setup(self): ...

        async def get_next_item(self): ...

        async def evaluate(self, *args, **kwargs): ...

    return read_settings(Env, ["serve", "--config", str(FILES / f"{name}.yaml"), *words])


def test_every_file_is_accepted_or_refused():
    names = {path.stem for path in FILES.glob("*.yaml")}
    assert WARNED.keys() | REFUSED.keys() == OWN.keys() == names and len(names) == 10
    assert READ.keys() == WARNED.keys()


@pytest.mark.parametrize("name", WARNED)
def test_a_file_with_keys_that_nothing_reads_is_accepted_with_warnings(name, caplog):
    with caplog.at_level(logging.WARNING):
        settings = read(name)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(WARNED[name])
    for line, text in zip(lines, WARNED[name], strict=True):
        assert f"{name}.yaml:" in line and text in line and line.endswith(": left out")
    key, value = READ[name]
    assert getattr(settings.env, key) == value


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_whose_values_do_not_fit_is_refused_with_their_place(name):
    with pytest.raises(ConfigError, match=REFUSED[name]):
        read(name)


def test_flags_mend_what_a_file_lacks_and_win_over_it():
    args = read("packaged_tasks", "--env.env_args", '{"split": "test"}').env.env_args
    assert args == {"split": "test"}
    assert read("letter_counting", "--env.total_steps", "5").env.total_steps == 5
    assert read("gsm8k_example", "--env.group_size", "2").env.group_size == 2


def test_both_servers_of_a_list_are_kept():
    servers = read("gsm8k_example").servers
    assert [server.base_url[-7:] for server in servers] == ["9001/v1", "9002/v1"]
