"""The workflows are valid, use existing targets, and cover the package's Python versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from atroposlib import __version__

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAJOR = re.compile(r"[\w-]+/[\w-]+@(release/)?v\d+")


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands_of(path):
    return "\n".join(step.get("run", "") for step in steps_of(load(path)))


def test_there_are_workflows_for_tests_documents_and_releases():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "docs.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_by_default_and_every_job_is_bounded(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # the key "on", as YAML 1.1 reads it
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] > 0 and job["runs-on"] == "ubuntu-latest"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_major_version(path):
    used = [step["uses"] for step in steps_of(load(path)) if "uses" in step]
    assert used and [one for one in used if not MAJOR.fullmatch(one)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_only_targets_and_scripts_that_exist(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    commands = commands_of(path)
    assert set(re.findall(r"\bmake ([a-z]+)", commands)) <= targets
    for script in re.findall(r"\bscripts/\w+\.py", commands):
        assert (ROOT / script).is_file(), script


def test_every_document_with_a_check_mode_is_checked():
    scripts = (ROOT / "scripts").glob("*.py")
    checked = {p.name for p in scripts if "import refresh" in p.read_text(encoding="utf-8")}
    named = re.findall(r"scripts/(\w+\.py) --check", commands_of(WORKFLOWS[1]))
    assert set(named) == checked


def test_the_tests_run_on_every_python_of_the_classifiers():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)
    ci = load(WORKFLOWS[0])
    assert ci["jobs"]["fast"]["strategy"]["matrix"]["python"] == versions
    named = [s["with"]["python-version"] for s in steps_of(ci) if "setup-python" in str(s)]
    assert {one for one in named if "matrix" not in one} <= set(versions)


def test_a_change_a_night_and_a_tag_run_the_checks_of_a_submission():
    ci = load(WORKFLOWS[0])
    assert {"push", "pull_request", "schedule"} == ci[True].keys()
    (step,) = (one for one in steps_of(ci) if one.get("run") == ".ci/run")
    assert re.search(r"schedule.*tag.*'1'", step["env"]["ALL"])


def test_the_version_is_the_same_everywhere():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = load(ROOT / "CITATION.cff")
    newest, date = re.findall(r"^## \[(\d\S*)\] - (\S+)$", changelog, flags=re.MULTILINE)[0]
    assert f'\nversion = "{__version__}"\n' in pyproject
    assert (citation["version"], str(citation["date-released"])) == (__version__, date)
    assert newest == __version__
