"""Deliberate mistakes in real processes: one cause with its place, a remedy, exit status 1 or 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.testing.fake_inference import FakeInference

pytestmark = pytest.mark.slow

SCRIPT = """from atroposlib.envs import environment
import json
TASKS = [{{"id": f"{{a}}+{{b}}", "sum": a + b}} for a in range(1, 9) for b in range(1, 9)]
{before}
@environment({data})
{define} sums(task, model):
    answer = await model.chat("What is " + task["id"], max_tokens=6)
{body}
if __name__ == "__main__":
    sums.cli()
"""
CLASS = """from atroposlib.envs import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.rollout.groups import from_nodes
class Sums(BaseEnv):
    async def collect_trajectories(self, item):
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            reply = await managed.chat_completion(messages=[{{"role": "user", "content": item}}], n=2)
            group = from_nodes(managed.nodes_for(reply), [0.0, 1.0])
        {body}
        return group, []
    async def get_next_item(self):
        return "What is 3 + 4?"
    async def setup(self):
        pass
    async def evaluate(self):
        pass
    @classmethod
    def config_init(cls):
        server = APIServerConfig(base_url="http://localhost:9001/v1", server_type="vllm")
        return BaseEnvConfig(), server
Sums.cli()
"""
NOT_ASYNC = SCRIPT.replace("await model", "model")
RETURNS = "    return answer == str(task['sum'])"
# name -> (changes of the script, flags, exit status, text of stderr)
MISTAKES: dict[str, tuple[dict[str, str], list[str], int, list[str]]] = {
    "nan": ({"body": "    return float('nan')"}, [], 2, ["env.py:6: ValueError", "is nan"]),
    "string": ({"body": "    return 'good'"}, [], 2, ["env.py:6:", "not str 'good'"]),
    "raises": (
        {"body": "    return 1 / 0"},
        [],
        2,
        ["env.py:8: ZeroDivisionError: division by zero, in `return 1 / 0`"],
    ),
    "no return": (
        {"body": "    answer == '7'"},
        [],
        2,
        ["env.py:6:", "function", "returned None"],
    ),
    "misspelt reward": (
        {"data": "TASKS, rewards={'exact': 1.0}", "body": "    return {'exakt': 1.0}"},
        [],
        2,
        ["env.py:6:", "reward 'exakt' has no weight", "; did you mean exact?"],
    ),
    "misspelt key": (
        {"body": "    return answer == task['som']"},
        [],
        2,
        ["env.py:8: KeyError: 'som', in `return answer == task['som']`"],
    ),
    "name": ({"body": "    return anwser == '7'"}, [], 2, ["env.py:8: NameError"]),
    "library": (
        {"body": "    return json.loads('{')['a']"},
        [],
        2,
        ["env.py:8: JSONDecodeError", "in `return json.loads('{')['a']`"],
    ),
    "parse": (
        {"body": "    return int(answer) == 7"},
        [],
        2,
        ["env.py:8: ValueError: invalid"],
    ),
    "reward function": (
        {
            "before": "def exact(task, answer):\n    return task.gold == answer\n",
            "data": "TASKS, rewards=exact",
            "body": "    return answer",
        },
        [],
        2,
        ["env.py:5: AttributeError: 'dict' object has no attribute 'gold'"],
    ),
    "untyped tool": (
        {
            "before": "def add(a, b):\n    return a + b\n",
            "body": "    return await model.use_tools('x', tools=[add]) == '7'",
        },
        [],
        2,
        ["env.py:10: tool add (env.py:4): parameter 'a' needs a type"],
    ),
    "ignored tools": (
        {
            "before": "def add(a: int, b: int) -> int:\n    return a + b\n",
            "body": "    return await model.use_tools('x', tools=[add]) == '7'",
        },
        [],
        2,
        ["env.py:10: the chat template of", "--env.describe_tools true"],
    ),
    "not async": (
        {"define": "def", "script": NOT_ASYNC},
        [],
        2,
        ["env.py:6: sums: write `async"],
    ),
    "setting": (
        {"data": "TASKS, group_sise=4"},
        [],
        2,
        ["env.py:6:", "did you mean group_size?"],
    ),
    "no data set": ({"data": "'absent.jsonl'"}, [], 1, ["error: absent.jsonl does not exist"]),
    "loader": (
        {"before": "def load():\n    return open('absent.txt').readlines()\n", "data": "load"},
        [],
        1,
        ["env.py:5: FileNotFoundError", "loading the train data failed"],
    ),
    "no tokenizer": (
        {},
        ["--env.tokenizer_name", "./no-model"],
        2,
        ["no directory ./no-model"],
    ),
    "await": (
        {"body": "    other = model.chat('x')\n    return other.strip() == '7'"},
        [],
        2,
        ["env.py:8:", "write `await model.chat(...)`, in `other = model.chat('x')`"],
    ),
    "await own": (
        {
            "before": "async def judge(a):\n    return 1.0\n",
            "body": "    return judge(answer)",
        },
        [],
        2,
        ["env.py:8:", "write `await judge(...)`"],
    ),
    "too few tasks": (
        {"data": "TASKS[:3], epochs=1"},
        [],
        1,
        ["2 of 4 groups were made", "epochs"],
    ),
}
START = re.compile(r"\S+ info |.*UserWarning|  warn")  # lines of a start


def start_script(folder: Path, words: list[str], **parts: str) -> subprocess.Popen[str]:
    blanks = {"before": "", "data": "TASKS", "define": "async def", "body": RETURNS}
    script = parts.pop("script", SCRIPT)
    (folder / "env.py").write_text(script.format(**{**blanks, **parts}))
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "env.py", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(
    folder: Path, words: list[str], **parts: str
) -> subprocess.CompletedProcess[str]:
    with start_script(folder, words, **parts) as process:
        try:
            output, said = process.communicate(timeout=600)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, said)


def flags(url: str, tokenizer: str) -> list[str]:
    return [
        *("--openai.base_url", f"{url}/v1", "--openai.model_name", "fake"),
        *("--env.tokenizer_name", tokenizer, "--env.group_size", "2"),
        *("--env.use_wandb", "false", "--env.total_steps", "4"),
    ]


@pytest.fixture(scope="module")
def server() -> FakeInference:
    return FakeInference()


@pytest.fixture(scope="module")
def url(server: FakeInference):
    with server.running() as root_url:
        yield root_url


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not START.match(line)]


@pytest.mark.parametrize("name", MISTAKES)
def test_process_names_a_mistake_and_ends(name, url, tokenizer_dir, tmp_path):
    parts, more, status, says = MISTAKES[name]
    done = run_script(tmp_path, ["process", *flags(url, tokenizer_dir), *more], **parts)
    assert done.returncode == status, done.stderr
    assert len(complaints(done)) <= 3, done.stderr
    for text in says:
        assert text in done.stderr


@pytest.mark.parametrize("name", ["raises", "no return", "await"])
def test_evaluate_names_a_mistake_and_ends(name, url, tokenizer_dir, tmp_path):
    parts, _, status, says = MISTAKES[name]
    done = run_script(tmp_path, ["evaluate", *flags(url, tokenizer_dir)], **parts)
    assert done.returncode == status and len(complaints(done)) <= 3, done.stderr
    for text in says:
        assert text in done.stderr


@pytest.mark.parametrize(
    ("status", "says", "ends_with"),
    [
        (401, "--openai.api_key", 2),
        (404, "atropos-infer --model", 2),
        (400, "as scripted", 2),
    ],
)
def test_a_refusing_server_is_named_with_the_remedy(
    status, says, ends_with, tokenizer_dir, tmp_path
):
    refusing = FakeInference()
    refusing.fail_next.extend([status] * 100)
    with refusing.running() as root_url:
        done = run_script(tmp_path, ["process", *flags(root_url, tokenizer_dir)])
    assert done.returncode == ends_with and len(complaints(done)) <= 3, done.stderr
    assert says in done.stderr


def test_the_traceback_is_shown_where_the_level_is_debug(url, tokenizer_dir, tmp_path):
    words = ["process", *flags(url, tokenizer_dir), "--log-level", "debug"]
    done = run_script(tmp_path, words, body="    return 1 / 0")
    assert done.returncode == 2
    assert 'env.py", line 8, in sums' in done.stderr and "Traceback" in done.stderr


def test_a_function_without_a_mistake_makes_its_groups(url, tokenizer_dir, tmp_path):
    done = run_script(tmp_path, ["process", *flags(url, tokenizer_dir)])
    assert done.returncode == 0, done.stderr


def test_absent_data_is_named_before_the_server_is_waited_for(tmp_path, unused_tcp_port):
    words = ["process", "--openai.base_url", f"http://127.0.0.1:{unused_tcp_port}/v1"]
    done = run_script(tmp_path, words, data="'absent.jsonl'")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("error: absent.jsonl does not exist; the data set of @environment")
    assert "waiting" not in done.stderr


@pytest.mark.parametrize("script", [SCRIPT, CLASS], ids=["function", "class"])
def test_a_wrong_model_name_is_shown_with_the_served_ones(script, tokenizer_dir, tmp_path):
    refusing = FakeInference()
    refusing.fail_next.extend([404] * 100)
    with refusing.running() as root_url:
        words = ["process", *flags(root_url, tokenizer_dir), "--openai.model_name", "large"]
        done = run_script(tmp_path, words, script=script)
    assert done.returncode == 2 and len(complaints(done)) <= 3, done.stderr
    assert "model 'large' is not served" in done.stderr
    assert "set --openai.model_name to fake, or leave it out" in done.stderr


@pytest.mark.parametrize("script", [SCRIPT, CLASS], ids=["function", "class"])
def test_serve_ends_with_the_error_of_the_user(script, api, url, tokenizer_dir, tmp_path):
    with api.trainer(batch_size=4, num_steps=2):
        words = [*flags(url, tokenizer_dir), "--env.rollout_server_url", api.url]
        done = run_script(tmp_path, ["serve", *words], script=script, body="    return 1 / 0")
    assert (
        done.returncode == 2
    )  # the launcher does not start it again, and shows the last line
    *before, error = done.stderr.splitlines()
    assert any(
        " warning " in line and "env.py:8: ZeroDivisionError" in line for line in before
    )
    assert error.startswith("error: ") and "env.py:8: ZeroDivisionError" in error
    assert "; all samples of the first 2 items failed by this: " in error


def test_a_late_server_is_checked_while_serve_waits_for_the_trainer(
    api, tokenizer_dir, tmp_path, unused_tcp_port
):
    late = FakeInference()
    late.cards = [{"id": "fake", "owned_by": "atropos-local", "root": tokenizer_dir}]
    words = [
        *flags(f"http://127.0.0.1:{unused_tcp_port}", tokenizer_dir),
        "--openai.model_name",
    ]
    process = start_script(
        tmp_path, ["serve", *words, "large", "--env.rollout_server_url", api.url]
    )
    with process:
        lines = iter(process.stderr.readline, "")
        assert any("waits for the trainer to start" in line for line in lines)
        with late.running(unused_tcp_port):
            said = list(lines)
            assert process.wait(600) == 2, said
    assert "model 'large' is not served" in said[-1] and "to fake, or leave it out" in said[-1]
