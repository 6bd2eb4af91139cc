"""serve, process and evaluate as commands of pydantic-cli, run by separate programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from pydantic_cli import Cmd, FailedExecutionException, run_and_exit, to_runner

from atroposlib.envs.cli import main, read_settings
from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv
from atroposlib.errors import ConfigError
from tests.envs.old_style.shapes import NodesConfig, NodesEnv, TokenizingEnv

MODES = ("serve", "process", "evaluate")


class HardConfig(NodesConfig):
    """Settings that pydantic-cli alone stumbles over."""

    never: str = None  # type: ignore[assignment]
    judge: Callable[[str], float] | None = None
    words: list[str] = ["a"]
    share: float = 0.5


class HardEnv(NodesEnv):
    env_config_cls = HardConfig

    @classmethod
    def config_init(cls):
        config, servers = super().config_init()
        return HardConfig(**config.model_dump(), judge=len), servers


def commands(env_cls) -> dict[str, type[Cmd]]:
    return {
        "serve": env_cls.get_cli_serve_config_cls(),
        "process": env_cls.get_cli_process_config_cls(),
        "evaluate": env_cls.get_cli_evaluate_config_cls(),
    }


@pytest.fixture
def settings(inference_url, tokenizer_dir, tmp_path) -> dict[str, str]:
    return {
        "openai.base_url": inference_url,
        "openai.health_check": "false",
        "env.tokenizer_name": tokenizer_dir,
        "env.total_steps": "2",
        "env.data_path_to_save_groups": str(tmp_path / "groups.jsonl"),
        "env.data_dir_to_save_evals": str(tmp_path),
        "env.ensure_scores_are_not_same": "false",
    }


@pytest.fixture
def words(settings) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def groups(tmp_path) -> int:
    return len((tmp_path / "groups.jsonl").read_text().splitlines())


def test_run_and_exit_runs_one_command_with_the_words_of_the_program(
    words, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["program.py", *words, "--env.group_size=3"])
    with pytest.raises(SystemExit) as stopped:
        run_and_exit(NodesEnv.get_cli_process_config_cls(), description="a program")
    assert (stopped.value.code, groups(tmp_path)) == (0, 2)


@pytest.mark.parametrize("env_cls", [TokenizingEnv, NodesEnv])
def test_a_runner_has_the_three_as_subcommands(env_cls, words, tmp_path, api):
    run = to_runner(commands(env_cls), description="a program")
    assert run(["process", *words]) == 0 and groups(tmp_path) == 2
    assert run(["evaluate", *words]) == 0 and (tmp_path / "metrics.json").exists()
    (tmp_path / "groups.jsonl").unlink()
    with api.trainer(batch_size=4, num_steps=2) as trainer:
        assert run(["serve", *words, "--env.rollout_server_url", api.url]) == 0
        assert trainer.claim(wait_s=5).batch


def test_a_command_made_in_code_runs_with_its_values(settings, tmp_path):
    command = NodesEnv.get_cli_process_config_cls()
    (tmp_path / "a.yaml").write_text(json.dumps({"env": {"total_steps": 9, "group_size": 3}}))
    values = {**settings, "env.total_steps": 4, "env.group_size": 2}
    command(**values, config=str(tmp_path / "a.yaml")).run()
    assert groups(tmp_path) == 4
    merged = command(config=str(tmp_path / "a.yaml"), **{"env.group_size": 2}).settings()
    assert (merged.env.total_steps, merged.env.group_size) == (9, 2)


def test_a_subclass_adds_a_flag_and_a_step_before_the_run(words, tmp_path):
    class Labelled(NodesEnv.get_cli_process_config_cls()):
        label: str

        def run(self) -> None:
            (tmp_path / "label").write_text(f"{self.label} {getattr(self, 'env.group_size')}")
            super().run()

    assert to_runner(Labelled)([*words, "--label", "mine"]) == 0
    assert (tmp_path / "label").read_text() == "mine 2" and groups(tmp_path) == 2

    class Env(NodesEnv):
        @classmethod
        def get_cli_process_config_cls(cls):
            return Labelled

    main(
        Env,
        [
            "process",
            *words[:-4],
            "--label=ours",
            f"--env.data_path_to_save_groups={tmp_path}/b",
        ],
    )
    assert (tmp_path / "label").read_text() == "ours 2" and (tmp_path / "b").exists()


def test_a_missing_flag_of_a_subclass_ends_with_2_and_its_name(capsys):
    class Labelled(NodesEnv.get_cli_process_config_cls()):
        label: str

    own = {"get_cli_process_config_cls": staticmethod(lambda: Labelled)}
    env_cls = type("Env", (NodesEnv,), own)
    with pytest.raises(SystemExit) as stopped:
        main(env_cls, ["process"])
    assert stopped.value.code == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown == "error: --label is required"


@pytest.mark.parametrize("mode", MODES)
def test_every_subcommand_has_all_flags_and_the_defaults_of_the_code(mode):
    command = commands(HardEnv)[mode]
    assert set(command.model_fields) == set(commands(HardEnv)["serve"].model_fields)
    assert {"config", "slurm", "env.words", "openai.api_key"} <= set(command.model_fields)
    made = command()
    shown = [getattr(made, f"env.{name}") for name in ("group_size", "words", "never")]
    assert shown == [2, ["a"], None]
    assert getattr(made, "openai.model_name") == "init" and made.model_fields_set == set()
    assert getattr(made, "env.include_messages") is (mode == "process")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("--env.words=[]", "words", []),
        ('--env.words=["x", "y"]', "words", ["x", "y"]),
        ("--env.share=-1e-5", "share", -1e-5),
        ("--env.wandb_name=None", "wandb_name", None),
    ],
)
def test_values_are_read_the_same_way_without_the_command_line_of_cli(text, field, value):
    seen = []

    class Kept(HardEnv.get_cli_serve_config_cls()):
        def run(self) -> None:
            seen.append(self.settings().env)

    assert to_runner(Kept)([text]) == 0
    assert getattr(seen[0], field) == value
    assert getattr(read_settings(HardEnv, ["serve", text]).env, field) == value


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--env.gruop_size", "3"], FailedExecutionException),
        (["7"], FailedExecutionException),
        (["--env.group_size", "many"], ConfigError),
        (["--config", "absent.yaml"], ConfigError),
    ],
)
def test_the_runner_of_a_program_handles_the_errors(words, error):
    seen = []

    def handle(problem: BaseException) -> int:
        seen.append(problem)
        return 2

    assert to_runner(commands(NodesEnv), exception_handler=handle)(["serve", *words]) == 2
    assert isinstance(seen[0], error)


def test_the_help_of_pydantic_cli_shows_meaning_and_default(capsys):
    class Percent(NodesConfig):
        """A percent sign in a description."""

    Percent.model_fields["temperature"].description = "100% of it"
    init = staticmethod(lambda: (Percent(), NodesEnv.config_init()[1]))
    env_cls = type("Env", (NodesEnv,), {"config_init": init})
    assert to_runner(env_cls.get_cli_serve_config_cls())(["--help"]) == 0
    assert "100% of it [1.0]" in " ".join(capsys.readouterr().out.split())


def test_flags_of_a_teacher_are_fields_too():
    config = TeacherDistillationEnv.env_config_cls()
    init = staticmethod(lambda: (config, NodesEnv.config_init()[1]))
    env_cls = type("Env", (TeacherDistillationEnv, NodesEnv), {"config_init": init})
    command = env_cls.get_cli_serve_config_cls()
    assert command(**{"teacher.base_url": "http://t:1/v1"}).settings().more_servers["teacher"]
