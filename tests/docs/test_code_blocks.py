"""Every code block of the documents is run by a test, checked by its commands, or named here.

Python runs: whole environments in tests/environments/test_readme_environment.py, the other pages in
the tests of RUN_BY. Lines of a shell are not run: their commands, flags, targets and extras exist.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from atroposlib.envs.base import BaseEnvConfig
from atroposlib.envs.curriculum import ObservedGroup
from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.curriculum.registry import make_sampler
from atroposlib.envs.settings.curriculum_settings import CurriculumPart
from atroposlib.wire import ScoredData
from example_trainer.data.rows import to_rows
from tests.environments.test_readme_environment import PAGES as ENVIRONMENT_PAGES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
HISTORY = ("docs/log.md", "docs/decisions/")
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```[ ]*$", re.DOTALL | re.MULTILINE)
RUN_BY = {
    "docs/adapters.md": "tests/adapters/test_mcp.py",
    "docs/agents.md": "tests/docs/test_agents.py",  # whole environments: tests/adapters/test_agents.py
    "docs/losses.md": "tests/docs/test_code_blocks.py",
    "docs/other-training.md": "tests/docs/test_other_training.py",
    "docs/rewards.md": "tests/docs/test_code_blocks.py",
    "docs/trainer.md": "tests/docs/test_code_blocks.py",
    "docs/watching.md": "tests/docs/test_code_blocks.py",
    "docs/wire.md": "scripts/generate_wire_doc.py",  # from the sources and a running API
}
# Commands of other programs, and words of the shell.
FOREIGN = set(
    "cd curl docker echo eval grep export for done git kubectl mapfile mkdir printf ray source srun tail uv"
    " vllm vf-eval vf-validate wait torchrun pip env gpus= port= }".split()
)
# Whole blocks that nothing here can check, with the reason.
UNCHECKED = {
    ("docs/security.md", "nginx"): "the configuration of another program",
    ("docs/wire.md", "http"): "written by make wire from a running API",
    ("docs/wire.md", "text"): "bytes of a frame, written by make wire",
    ("docs/cluster.md", "dockerfile"): "an image on that of an engine, for CUDA",
    ("docs/watching.md", "bash heredoc"): "test_the_program_about_metrics_runs",
    ("SLURM.md", "bash script"): "tests/envs would need a SLURM cluster; bash -n reads it",
}


GALLERY = "docs/gallery.md"  # written by scripts/gallery.py: its fences are parts of rollouts


def pages():
    for path in sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")):
        name = str(path.relative_to(ROOT))
        if not name.startswith(HISTORY) and name != GALLERY:
            yield name, path.read_text(encoding="utf-8")


BLOCKS = [
    (page, language, "".join(line.removeprefix(indent) for line in code.splitlines(True)))
    for page, text in pages()
    for indent, language, code in BLOCK.findall(text)
]


def blocks(*languages, page=None):
    return [
        (name, code)
        for name, language, code in BLOCKS
        if language in languages and page in (None, name)
    ]


def test_every_language_is_run_checked_or_named():
    checked = {"python", "bash", "sh", "yaml", "json", "toml"}
    left = {(page, language) for page, language, _ in BLOCKS if language not in checked}
    assert left == {
        one for one in UNCHECKED if one[1] in ("dockerfile", "nginx", "http", "text")
    }


def test_every_page_with_python_is_run_by_a_test():
    named = {page for page, _ in blocks("python")}
    assert named == {*ENVIRONMENT_PAGES, *RUN_BY}
    assert [test for test in RUN_BY.values() if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize(("page", "code"), blocks("json"))
def test_json_is_valid(page, code):
    try:
        json.loads(code)
    except json.JSONDecodeError:  # one document per line
        assert [json.loads(line) for line in code.splitlines()]


@pytest.mark.parametrize(("page", "code"), blocks("toml"))
def test_toml_is_valid(page, code):
    assert tomllib.loads(code)


def test_the_files_of_the_page_about_clusters_are_a_run(tmp_path):
    from example_trainer.launch.plan import read_plan, trainer_settings

    files = []
    for number, (_, code) in enumerate(blocks("yaml", page="docs/cluster.md")):
        files.append(str(tmp_path / f"{number}.yaml"))
        Path(files[-1]).write_text(code)
    plan = read_plan(files)  # the second replaces what depends on the machine
    settings = trainer_settings(plan)[1]
    assert (plan.inference.engine, settings.dtype) == ("vllm", "bfloat16")
    assert settings.sequences_per_step == 128


def test_the_algorithms_of_the_page_about_losses_are_settings_of_the_trainer():
    from atroposlib.envs.settings.teacher import TeacherSettings
    from example_trainer.settings.algorithms import algorithms_of
    from example_trainer.settings.config import TrainingConfig

    (_, code), (_, teachers) = blocks("yaml", page="docs/losses.md")
    settings = TrainingConfig(model_name="m", **yaml.safe_load(code))
    losses = {name: algorithm.loss for name, algorithm in algorithms_of(settings).items()}
    assert losses == {"gsm8k": "cispo", "tools": "gspo", "manual": "cross_entropy"}
    plan = yaml.safe_load(teachers)
    TrainingConfig(model_name="m", **plan["trainer"]["settings"])
    for environment in plan["environments"]:
        TeacherSettings(**environment["config"]["env"]["teacher"])


def test_the_other_yaml_names_trackers_of_the_trainer_and_a_job_of_prometheus():
    from atroposlib.trackers import TRACKERS

    trackers, prometheus = [
        yaml.safe_load(code) for _, code in blocks("yaml", page="docs/watching.md")
    ]
    assert set(trackers["trainer"]["settings"]["trackers"]) <= set(TRACKERS)
    assert prometheus["scrape_configs"][0]["job_name"] == "atropos"
    [(_, axolotl)] = blocks("yaml", page="docs/migrating-others.md")
    assert yaml.safe_load(axolotl)["accelerator_config"] == {"dispatch_batches": True}
    assert len(blocks("yaml")) == 12


def test_the_lines_about_other_trainers_give_their_records(monkeypatch):
    """The classes of verl and Tinker take them in `make adapters`."""
    group = ScoredData(
        tokens=[[5, 6, 7]],
        masks=[[-100, 6, 7]],
        scores=[1.0],
        inference_logprobs=[[1.0, -0.1, -0.2]],
        generation_params={"temperature": 1.0},
    )
    row = to_rows([group], 64).rows[0]
    record = lambda *args, **fields: (args, fields)  # noqa: E731
    names = {
        "verl.experimental.agent_loop.agent_loop": {"AgentLoopOutput": record},
        "tinker": {"Datum": record, "ModelInput": SimpleNamespace(from_ints=list)},
    }
    for module, members in names.items():
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**members))
    given = {
        "to_rows": to_rows,
        "batch": SimpleNamespace(batch=[group]),
        "seq_len": 64,
        "row": row,
        "advantage": 0.5,
    }
    codes = [
        code
        for _, code in blocks("python", page="docs/migrating-others.md")
        if "exchange.rows" in code
    ]
    for code in codes:
        exec(code, given)
    assert given["outputs"][0][1]["response_ids"] == [6, 7]
    assert given["datum"][0][0] == [5, 6]


def test_the_curriculum_of_the_guide_is_one_of_an_environment():
    [(_, code)] = blocks("yaml", page="docs/environments.md")
    settings = BaseEnvConfig(**yaml.safe_load(code)["env"]).curriculum
    assert (settings.sampler.name, settings.gate.name) == ("pools", "band")


def test_the_sampler_of_the_guide_draws_what_was_not_solved_twice(tmp_path):
    [code] = [
        c for _, c in blocks("python", page="docs/environments.md") if "TaskSampler" in c
    ]
    (tmp_path / "shortest.py").write_text(code)
    part = CurriculumPart(name=f"{tmp_path / 'shortest.py'}:ShortestFirst", solved=0.8)
    tasks = TaskRows([{"question": "long"}, {"question": "no"}], range(2))
    sampler = make_sampler(part, tasks, seed=0, env="guide")
    drawn = []
    for _ in range(3):
        task = sampler.draw()
        drawn.append(task.number)
        sampler.observe(ObservedGroup(task, (1.0, 0.7), 0.85))
    assert drawn == [1, 1, 0]
    again = make_sampler(part, tasks, seed=0, env="guide")
    again.restore(sampler.state())
    assert again.wins == {1: 2, 0: 1}


def test_the_yaml_about_rewards_is_a_run_of_the_dataset_environment():
    from atroposlib.environments.dataset_environment import DatasetConfig, rewards_of

    [(_, code)] = blocks("yaml", page="docs/rewards.md")
    config = DatasetConfig(**yaml.safe_load(code)["env"])
    assert list(rewards_of(config)) == ["accuracy", "format"]


def test_the_lines_about_rewards_run():
    names: dict[str, object] = {
        "item": {"answer": "4"},
        "completions": [[{"role": "assistant", "content": "<think>2+2</think> 4"}]],
    }
    for _, code in blocks("python", page="docs/rewards.md"):
        if ".cli()" not in code:
            exec(code, names)
    assert len(names["scores"]) == 1  # type: ignore[arg-type]
    assert names["ShoutingReward"]().compute(["Hi!!"]) == [0.5]  # type: ignore[operator]


def test_the_program_about_kept_rollouts_names_a_run_that_is_missing(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    [(_, code)] = blocks("python", page="docs/watching.md")
    exec(compile(code, "docs/watching.md", "exec"), {})
    assert "runs/a has no archive" in capsys.readouterr().out


def test_the_lines_about_losses_run():
    import torch

    from atroposlib.envs import environment
    from example_trainer.settings.config import TrainingConfig

    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    names: dict[str, object] = {
        "cfg": TrainingConfig(model_name="m"),
        "rewards": torch.tensor([1.0, 0.0]),
        "group_ids": torch.tensor([0, 0]),
        "logprobs": logprobs,
        "proximal_logprobs": logprobs.detach(),
        "behaviour_logprobs": logprobs.detach(),
        "advantages": torch.tensor([[1.0] * 3, [-1.0] * 3]),
        "loss_mask": torch.ones(2, 3),
    }
    [(_, code), (_, taught), _] = blocks("python", page="docs/losses.md")
    exec(code, names)
    assert names["loss_sum"].ndim == 0  # type: ignore[attr-defined]
    exec(taught, own := {"environment": environment})
    hint = own["word_problem"].definition.teacher_prompt({"question": "2 + 2?", "answer": "4"})
    assert hint == "2 + 2?\nThe answer is 4."


def test_the_plugins_of_the_page_are_loaded_and_compute(tmp_path, monkeypatch):
    from example_trainer.advantage import compute
    from example_trainer.settings.config import TrainingConfig
    from example_trainer.settings.plugins import require_plugins

    monkeypatch.chdir(tmp_path)
    [*_, (_, code)] = blocks("python", page="docs/losses.md")
    (tmp_path / "mine.py").write_text(code)
    chosen = {"advantage": "mine.py:leave_one_out", "group_filter": "mine.py:some_are_right"}
    cfg = TrainingConfig(model_name="m", reward_shaping="mine.py:shorter_is_better", **chosen)
    require_plugins(cfg)
    ours = compute([1.0, 0.0, 0.0], ["a"] * 3, cfg, lengths=[10, 10, 10])
    assert ours == pytest.approx(
        compute([1, 0, 0], ["a"] * 3, TrainingConfig(model_name="m", advantage="rloo"))
    )


def test_the_loop_of_the_page_about_the_trainer_learns(tmp_path, capsys):
    from atroposlib.testing.tiny import write_tiny_model

    model = write_tiny_model(tmp_path / "model", hidden_size=64)
    [(_, code)] = blocks("python", page="docs/trainer.md")
    exec(code, {"MODEL": str(model), "STEPS": 12, "OUT": tmp_path / "out"})
    steps = [line.split() for line in capsys.readouterr().out.splitlines()]
    rewards = [float(reward) for _, reward, _ in steps[-12:]]
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 1
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_the_program_about_metrics_runs(tmp_path, monkeypatch, capsys):
    shell = "".join(code for _, code in blocks("bash", page="docs/watching.md"))
    [program] = re.findall(r"<<'EOF'\n(.*?)^EOF$", shell, re.DOTALL | re.M)
    step = {"step": 1, "reward_mean": 0.049, "entropy": 1.98, "staleness_mean": 0.0}
    (tmp_path / "runs/larger").mkdir(parents=True)
    (tmp_path / "runs/larger/metrics.jsonl").write_text(json.dumps(step) + "\n")
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert capsys.readouterr().out == "1 0.05 1.98 0.0\n"


# --- shell --------------------------------------------------------------------------


def shell_lines():
    for page, code in blocks("bash", "sh"):
        code = re.sub(r"<<'EOF'.*?^EOF$", "", code, flags=re.DOTALL | re.MULTILINE)
        if code.startswith("#!"):
            continue
        for line in code.replace("\\\n", " ").splitlines():
            for part in line.split(" | "):
                if words := shlex.split(part, comments=True):
                    yield page, words


LINES = list(shell_lines())


@cache
def help_of(command: str) -> str:
    import contextlib
    import io

    from atroposlib.cli.atropos import main

    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    return printed.getvalue()


@pytest.mark.parametrize(
    ("page", "words"), [line for line in LINES if line[1][0] == "atropos"]
)
def test_the_commands_and_flags_of_atropos_exist(page, words):
    from atroposlib.cli.atropos import COMMANDS
    from atroposlib.cli.env_files import list_environments, load
    from atroposlib.envs.function_env.config import FunctionEnvConfig
    from atroposlib.generation.configs import APIServerConfig
    from example_trainer.settings.config import TrainingConfig

    _, first, *rest = words
    if first in ("version", "completion"):
        return
    second = f"{first} {rest[0]}" if rest else first
    if first == "run":  # without a word: local
        second = second if rest[0] in ("local", "slurm", "ray", "k8s") else "run local"
    command = second if second in COMMANDS or first == "run" else first
    assert {command, first} & set(COMMANDS)
    settings = FunctionEnvConfig.model_fields
    name = rest[1].partition(":")[0] if len(rest) > 1 else ""  # of adapter:argument too
    if first == "env" and any(one.name == name for one in list_environments()):
        settings = load(rest[1]).env_config_cls.model_fields
    for word in rest:
        flag = word.partition("=")[0]
        if flag.startswith("--env."):
            assert flag[6:] in settings
        elif flag.startswith("--openai."):
            assert flag[9:] in APIServerConfig.model_fields
        elif flag.startswith("--trainer."):
            assert flag[10:] in TrainingConfig.model_fields
        elif flag.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", help_of(command)), flag


def test_other_lines_call_make_pip_or_a_command_that_is_named_here():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras, own = set(project["optional-dependencies"]), set(project["scripts"])
    strange = []
    for page, words in LINES:
        first, *rest = words
        if first == "make":
            strange += [f"{page}: make {w}" for w in rest if "=" not in w and w not in targets]
        elif "pip" in words:
            asked = re.findall(r"\.\[([\w,-]+)\]", " ".join(rest))
            strange += [
                f"{page}: {e}" for one in asked for e in one.split(",") if e not in extras
            ]
        elif re.fullmatch(r"(\.venv/bin/)?python[\d.]*", first):
            strange += [
                f"{page}: {w}"
                for w in rest
                if w.startswith("scripts/") and not (ROOT / w).is_file()
            ]
        elif first not in FOREIGN | own and "=" not in first:
            strange.append(f"{page}: {' '.join(words)}")
    assert strange == []


@pytest.mark.parametrize(
    "name", sorted({(p, w[i + 1]) for p, w in LINES for i, x in enumerate(w) if x == "-m"})
)
def test_a_module_that_is_run_exists(name):
    from importlib.util import find_spec

    assert find_spec(name[1]) is not None


@pytest.mark.parametrize(("page", "code"), blocks("bash", "sh"))
def test_a_shell_block_can_be_parsed(page, code):
    import subprocess

    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
