"""What scaffolds and exports require, and a clash with the archived original."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from email.message import Message
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import atroposlib
from atroposlib.cli import env_new
from atroposlib.cli.export import found
from atroposlib.cli.export.verifiers import files
from atroposlib.utils.command import distribution

COMMIT = "0" * 40
INSTALLED = {  # direct_url.json, as pip and uv write it -> the reference
    "git": (
        {
            "url": "https://host/owner/atropos-rl.git",
            "vcs_info": {"vcs": "git", "commit_id": COMMIT},
        },
        f"git+https://host/owner/atropos-rl.git@{COMMIT}",
    ),
    "a wheel": (
        {"url": "https://host/atropos_rl-0.5.0-py3-none-any.whl", "archive_info": {}},
        "https://host/atropos_rl-0.5.0-py3-none-any.whl",
    ),
    "a folder": ({"url": "file:///src/atropos-rl", "dir_info": {}}, "file:///src/atropos-rl"),
}


class Installed:
    metadata = Message()  # without extras

    def __init__(self, recorded):
        self.recorded = recorded

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.recorded and json.dumps(self.recorded)


def installed(monkeypatch, tmp_path, recorded):
    monkeypatch.setattr(distribution, "_ROOT", tmp_path)
    monkeypatch.setattr(distribution, "distribution", lambda name: Installed(recorded))


@pytest.mark.parametrize("origin", INSTALLED)
def test_the_requirement_leads_to_where_it_was_installed_from(origin, monkeypatch, tmp_path):
    recorded, url = INSTALLED[origin]
    installed(monkeypatch, tmp_path, recorded)
    needed = Requirement(distribution.requirement("[train]"))
    assert (needed.name, needed.url, needed.extras) == ("atropos-rl", url, {"train"})


def test_the_requirement_of_what_an_index_gave_out_is_its_name_and_version(
    monkeypatch, tmp_path
):
    installed(monkeypatch, tmp_path, None)
    assert distribution.requirement() == f"atropos-rl>={atroposlib.__version__}"


def test_a_checkout_that_is_not_installed_is_required_by_its_folder(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(distribution, "distribution", absent)
    root = Path(atroposlib.__file__).parents[1]
    assert Requirement(distribution.requirement()).url == root.as_uri()
    assert distribution.extras() == set()


def needs_of(pyproject):
    [line] = [line for line in pyproject.splitlines() if line.startswith("dependencies = ")]
    return [Requirement(text) for text in json.loads(line.partition("=")[2])]


@pytest.mark.parametrize("kind", [*env_new.KINDS, "verifiers"])
@pytest.mark.parametrize("origin", [*INSTALLED, "here"])
def test_no_written_package_needs_a_distribution_that_another_project_owns(
    kind, origin, monkeypatch, tmp_path
):
    if origin != "here":
        installed(monkeypatch, tmp_path, INSTALLED[origin][0])
    if kind == "verifiers":
        text = files(found("letters"))["pyproject.toml"]
    else:
        env_new.write_project("mine", tmp_path / "mine", kind)
        text = (tmp_path / "mine/pyproject.toml").read_text(encoding="utf-8")
    ours = [need for need in needs_of(text) if need.name != "verifiers"]
    assert [(need.name, bool(need.url)) for need in ours] == [("atropos-rl", True)]
    assert "[tool.hatch.metadata]\nallow-direct-references = true" in text


def test_an_import_names_the_original_in_the_same_folder_in_one_sentence(tmp_path):
    (tmp_path / "atroposlib").symlink_to(Path(atroposlib.__file__).parent)
    paths = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import atroposlib"]

    def warning():
        done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert warning() == ""
    (tmp_path / "atroposlib-0.4.0.dist-info").mkdir()
    assert warning().count("pip uninstall atroposlib && pip install") == 1
