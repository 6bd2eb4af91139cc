"""Dockerfile and compose file without Docker: their steps, in plain virtual environments."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import venv
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
WITHIN_S = 900.0


def instructions():
    """(word, rest) of each instruction of the Dockerfile, with joined lines."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [line.split(" ", 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]


def stages():
    """The instructions of each stage, and the name of the stage before it."""
    found = {}
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = (base, [])
        elif found:
            found[list(found)[-1]][1].append((word, rest))
    return found


def is_sent(path):
    """Whether .dockerignore lets a path of the repository into the build; the last rule decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().lstrip("!")
        anywhere, pattern = pattern.startswith("**/"), pattern.removeprefix("**/")
        parents = [path, *path.parents][:-1]
        names = [one.name if anywhere else str(one) for one in parents]
        matches = any(fnmatch.fnmatch(name, pattern) for name in names)
        if pattern and not pattern.startswith("#") and matches:
            sent = line.startswith("!")
    return sent


# --- the files ------------------------------------------------------------------------


def test_the_dockerfile_has_no_finding_of_hadolint():
    hadolint = shutil.which(
        "hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    if hadolint is None:
        pytest.skip("hadolint has no build for this machine")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_default_target_is_slim_and_no_process_of_an_image_is_root():
    targets = stages()
    assert list(targets)[-1] == "environments"
    for name in ("trainer", "environments"):
        words = dict(targets[name][1])
        assert words["USER"].isdigit() and int(words["USER"]) > 0
    installs = dict(targets["environments"][1])["RUN"]
    assert "[math,postgres]" in installs  # no torch


def test_only_what_an_image_needs_is_sent_to_the_build():
    copied = [
        source
        for _, lines in stages().values()
        for word, rest in lines
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert {source for source in copied if not is_sent(Path(source))} == set()
    for private in (".git", ".venv", "runs", "tests", "docs/log.md", "queue.sqlite", ".env"):
        assert not is_sent(Path(private)), private
    assert not is_sent(Path("atroposlib/api/__pycache__"))


def test_only_the_api_is_published_and_only_on_this_machine():
    ports = {
        name: of.get("ports") for name, of in COMPOSE["services"].items() if "ports" in of
    }
    assert ports == {"api": ["127.0.0.1:8000:8000"]}


def test_every_target_of_the_compose_file_exists():
    built = {of["build"].get("target", "environments") for of in COMPOSE["services"].values()}
    assert built <= set(stages())


# --- the steps ------------------------------------------------------------------------


def build(name, folder, built):
    """Run the steps of a stage after those of its base; (folder, virtual environment)."""
    if name in built:
        return built[name]
    base, lines = stages()[name]
    place, programs = folder / name, folder / f"venv-{name}"
    if base in stages():
        build(base, folder, built)
    place.mkdir()
    venv.create(programs, with_pip=True)
    built[name] = place, programs
    for word, rest in lines:
        if word == "COPY":
            copy(rest.split(), place, built, folder)
        elif word == "RUN" and "useradd" not in rest:
            environment = {**os.environ, "PATH": f"{programs}/bin:{os.environ['PATH']}"}
            environment |= {
                "TORCH_INDEX": os.environ.get("TORCH_INDEX", "https://pypi.org/simple")
            }
            subprocess.run(["sh", "-ec", rest], cwd=place, env=environment, check=True)
    return built[name]


def copy(words, place, built, folder):
    *sources, target = words
    root = ROOT
    if sources[0].startswith("--from="):
        root = build(sources.pop(0).removeprefix("--from="), folder, built)[0]
        sources = [source.removeprefix("/srv/atropos/") for source in sources]
    for source in sources:
        for file in root.glob(source):
            to = place / target if target != "./" else place / file.name
            to.parent.mkdir(parents=True, exist_ok=True)
            if file.is_dir():
                shutil.copytree(file, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(file, to)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class Composed:
    """The services of the compose file as processes of this machine."""

    def __init__(self, folder, programs):
        self._folder, self._programs = folder, programs
        names = {"http://api:": "http://127.0.0.1:", "http://inference:": "http://127.0.0.1:"}
        ports = {"8000": free_port(), "9001": free_port()}
        self._here = {**names, **ports, "0.0.0.0": "127.0.0.1", "/data": str(folder / "data")}
        (folder / "data").mkdir(mode=0o700)

    def start(self, name):
        service = COMPOSE["services"][name]
        target = service["build"].get("target", "environments")
        given = service.get("environment", {})
        environment = {name: self._local(value) for name, value in given.items()}
        environment["HOME"] = str(self._folder)
        environment["PATH"] = f"{self._programs[target]}/bin:{os.environ['PATH']}"
        words = [self._local(word).replace("$$", "$") for word in service["command"]]
        with (self._folder / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                words, cwd=self._folder, env=environment, stdout=log, stderr=log
            )

    def await_healthy(self, name):
        words = COMPOSE["services"][name]["healthcheck"]["test"][1:]
        words = [sys.executable, *map(self._local, words[1:])]
        until = time.monotonic() + WITHIN_S
        while subprocess.run(words, capture_output=True).returncode != 0:
            assert time.monotonic() < until, (self._folder / f"{name}.log").read_text()
            time.sleep(0.2)

    def _local(self, text):
        for word, here in self._here.items():
            text = text.replace(word, here)
        return text


@pytest.mark.campaign
def test_the_steps_of_both_files_end_in_a_model_that_learned(tmp_path):
    built = {}
    programs = {name: build(name, tmp_path, built)[1] for name in ("environments", "trainer")}
    without_torch = [programs["environments"] / "bin/python", "-c", "import torch"]
    assert subprocess.run(without_torch, capture_output=True).returncode != 0
    composed = Composed(tmp_path, programs)
    with ExitStack() as started:
        assert composed.start("prepare").wait(WITHIN_S) == 0
        assert composed.start("prepare").wait(WITHIN_S) == 0  # after `docker compose up` again
        for name in ("api", "inference"):
            process = composed.start(name)
            started.callback(process.wait)
            started.callback(process.terminate)
            composed.await_healthy(name)
        environment = composed.start("environment")
        started.callback(environment.wait)
        started.callback(environment.terminate)
        trainer = composed.start("trainer")
        log = tmp_path / "trainer.log"
        assert trainer.wait(WITHIN_S) == 0, log.read_text()[-3000:]
    steps = map(json.loads, (tmp_path / "data/metrics.jsonl").read_text().splitlines())
    rewards = [step["reward_mean"] for step in steps if "reward_mean" in step]
    assert len(rewards) == 30 and rewards[0] < 0.3 < 0.7 < rewards[-1]
    assert list((tmp_path / "data/checkpoints").rglob("model.safetensors"))
    for file in (tmp_path / "data/tokens").iterdir():
        assert file.stat().st_mode & 0o077 == 0, shlex.quote(str(file))
