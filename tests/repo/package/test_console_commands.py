"""Console commands as processes: help and version without torch, JSON logs, closed pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from atroposlib import __version__

pytestmark = pytest.mark.slow
# A machine without the extras: their modules cannot be imported.
RUN = """
import functools, importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "gguf"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
module, function = sys.argv.pop(1).split(":")
sys.exit(functools.reduce(getattr, function.split("."), importlib.import_module(module))())
"""
NEEDS = {
    "atropos-grpo": ("train", "--model-name m"),
    "atropos-sft": ("train", "--model-name m --train-file f"),
    "atropos-dpo": ("train", "--model-name m --train-file f"),
    "atropos-rm": ("train", "--model-name m --train-file f"),
    "atropos-infer": ("inference", "--model m"),
    "atropos-quickstart": ("quickstart", "--model tiny --out OUT"),
}


def scripts(root) -> dict[str, str]:
    section = (root / "pyproject.toml").read_text().partition("[project.scripts]\n")[2]
    return dict(re.findall(r'^([\w-]+) = "(.+)"$', section.partition("\n[")[0], re.MULTILINE))


def run(target, *words, **more):
    argv = [sys.executable, "-c", RUN, target, *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(argv, env=env, text=True, timeout=600, **more)


def output(target, *words):
    return run(target, *words, capture_output=True)


def pytest_generate_tests(metafunc):
    if "command" in metafunc.fixturenames:
        found = scripts(metafunc.config.rootpath)
        del found["atropos"]  # only names the others
        metafunc.parametrize(("command", "target"), found.items(), ids=found)


def test_help_and_version_of_a_command_need_no_torch(command, target):
    shown = output(target, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (f"usage: {command} ", "--log-format", "-v ", "environment variables:"):
        assert words in shown.stdout, words
    version = output(target, "--version")
    assert (version.returncode, version.stdout) == (0, f"{command} {__version__}\n")


@pytest.mark.parametrize("command_words", ["train grpo", "train sft", "infer", "run local"])
def test_help_by_the_command_atropos_needs_no_torch(root, command_words):
    shown = output(scripts(root)["atropos"], *command_words.split(), "--help")
    assert (shown.returncode, shown.stderr) == (0, "") and "--log-format" in shown.stdout


def test_an_unknown_flag_is_one_json_line_where_logs_are_json(command, target):
    done = output(target, "--log-format", "json", "--no-such-flag=1")
    assert done.returncode == 2
    [event] = map(json.loads, done.stderr.splitlines())
    assert (event["level"], event["process"]) == ("error", command)


def test_an_environment_has_the_common_flags_and_every_line_of_its_log_is_json():
    words = ("process", "--log-format", "json", "--openai.api_key", "x")
    done = output("environments.copy_server:CopyEnv.cli", *words, "--env.group_size", "many")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 2 and "env.group_size" in events[-1]["message"]
    assert {event["process"] for event in events} == {"copy"}
    shown = output("environments.copy_server:CopyEnv.cli", "--version")
    assert (shown.returncode, shown.stdout.split()[1:]) == (0, [__version__])


@pytest.mark.parametrize("name", NEEDS)
def test_a_command_without_its_extra_is_one_line_and_status_2(root, tmp_path, name):
    extra, words = NEEDS[name]
    done = output(scripts(root)[name], *words.replace("OUT", str(tmp_path / "r")).split())
    lines = (done.stderr + done.stdout).splitlines()
    assert done.returncode == 2, lines
    assert "needs torch" in lines[-1] and f"pip install 'atropos-rl[{extra}]'" in lines[-1]
    assert len(lines) == 1 and "make" not in lines[-1]


@pytest.mark.parametrize("name", ["run-api", "atropos-grpo", "environment"])
def test_a_reader_that_closes_the_pipe_of_the_help_causes_no_traceback(root, name):
    target = {**scripts(root), "environment": "environments.copy_server:CopyEnv.cli"}[name]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = run(target, "--help", stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
