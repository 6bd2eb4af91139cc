"""Environments of the README, its guide, the tutorials and the cookbook, run unchanged."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from atroposlib.envs.base import APIServerConfig, BaseEnv
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from tests.envs.conftest import RunningApi

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/environments.md",
    "docs/cookbook.md",
    "docs/migrating-others.md",
    "docs/publishing.md",
    "docs/rewards.md",
    "docs/tutorials/first-environment.md",
)
# Pages that have single lines of Python as well: tests/docs/test_code_blocks.py runs these.
WITH_LINES = ("docs/rewards.md", "docs/migrating-others.md", "docs/environments.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def environments_of(page):
    for source in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if page in WITH_LINES and ".cli()" not in source:
            continue
        (name,) = re.findall(r"^    (\w+)\.cli\(\)", source, flags=re.MULTILINE)
        yield pytest.param(page, name, source, id=f"{page}:{name}")


ALL = [one for page in PAGES for one in environments_of(page)]


def written(page, name, source):
    names = {"__name__": "written_in_the_docs", "__file__": str(Path("page.py").absolute())}
    exec(compile(source, page, "exec"), names)
    return names[name]


@pytest.fixture(autouse=True)
def problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + 4?", "answer": str(n + 4)} for n in range(8)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "photos").mkdir()
    for n in range(8):
        (tmp_path / "photos" / f"{n}.png").write_bytes(b"\x89PNG")
    words = [json.dumps({"word": word}) for word in ("apple", "grape", "lemon", "peach")]
    (tmp_path / "wordle_words.jsonl").write_text("\n".join(words))


@pytest.fixture
def env_of(monkeypatch):
    replies = {}

    def says_something_else_each_time(prompt, index):
        replies[prompt] = replies.get(prompt, -1) + 1
        number = str(replies[prompt] + 3)
        return f"Rating: {number}" if "Rating: N" in prompt else number

    with FakeInference(reply=says_something_else_each_time).running() as url:
        monkeypatch.setenv("JUDGE_URL", f"{url}/v1")

        def make(env_cls, **settings):
            server = APIServerConfig(
                base_url=f"{url}/v1", server_type="vllm", model_name="fake"
            )
            config = env_cls.config_init()[0].model_copy(
                # The template of the character tokenizer has no tools.
                update={
                    "use_wandb": False,
                    "total_steps": 2,
                    "describe_tools": True,
                    **settings,
                }
            )
            if "sandbox" in type(config).model_fields:
                config.sandbox = "none"  # bubblewrap has separate tests
            env = env_cls(config, [server])
            env.tokenizer = char_tokenizer(ASCII_ALPHABET)
            return env

        yield make


@pytest.mark.parametrize(("page", "name", "source"), ALL)
async def test_the_readme_environment_runs_in_process_mode(
    page, name, source, env_of, tmp_path
):
    groups = tmp_path / "groups.jsonl"
    env = env_of(
        written(page, name, source),
        data_path_to_save_groups=str(groups),
        ensure_scores_are_not_same=False,
    )
    assert await env.process_manager() >= 2
    for line in groups.read_text().splitlines():
        assert len(json.loads(line)["scores"]) == env.config.group_size


@pytest.mark.parametrize(("page", "name", "source"), ALL)
async def test_the_readme_environment_runs_in_evaluate_mode(
    page, name, source, env_of, tmp_path
):
    env = env_of(written(page, name, source), data_dir_to_save_evals=str(tmp_path / "evals"))
    await env.setup()
    await env.evaluate()
    await env.close()
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())["results"]["all"]
    assert metrics.get("failed", 0) == 0


@pytest.mark.parametrize(("page", "name", "source"), ALL)
async def test_the_readme_environment_runs_in_serve_mode(page, name, source, env_of, tmp_path):
    api = RunningApi(tmp_path / "queue")
    api.start()
    try:
        env = env_of(
            written(page, name, source),
            rollout_server_url=api.url,
            ensure_scores_are_not_same=False,
        )
        trainer = api.trainer(batch_size=env.config.group_size, num_steps=2)
        serving = asyncio.ensure_future(env.env_manager())
        batch = None
        while batch is None and not serving.done():
            batch = (await asyncio.to_thread(trainer.claim, wait_s=5.0)).batch
        (group,) = batch
        assert len(group.scores) == env.config.group_size
        env._atropos.serving.shutdown.request("the test has seen enough")
        await asyncio.wait_for(serving, 600)
        trainer.close()
    finally:
        api.stop()


def test_the_first_readme_environment_has_ten_lines_and_a_command_line(
    env_of, monkeypatch, capsys
):
    page, name, source = ALL[0].values
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    env_cls = written(page, name, source)
    assert issubclass(env_cls, BaseEnv)
    monkeypatch.setattr(sys, "argv", ["sums.py", "serve", "--help"])
    with pytest.raises(SystemExit) as ended:
        env_cls.cli()
    assert ended.value.code == 0
    assert "--env.eval_fraction" in capsys.readouterr().out
