"""Decisions of scripts/bootstrap.py, without an installation."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def bootstrap(script):
    return script("bootstrap")


@pytest.fixture
def free_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"  # bound, and it does not listen


@pytest.fixture
def checkout(bootstrap, tmp_path, monkeypatch):
    """A folder with the three files that determine the installation."""
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    for name in bootstrap.INPUTS:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("as it was\n")
    return tmp_path


def test_a_changed_pin_or_extra_makes_the_environment_stale(bootstrap, checkout):
    before = bootstrap.digest("dev")
    assert bootstrap.digest("dev") == before
    assert bootstrap.digest("dev,wandb") != before
    (checkout / "constraints.txt").write_text("torch==0\n")
    assert bootstrap.digest("dev") != before


def test_a_current_environment_is_left_alone(bootstrap, checkout, monkeypatch):
    python = bootstrap.venv_python(checkout / "env")
    python.parent.mkdir(parents=True)
    python.touch()
    (checkout / "env/.installed").write_text(bootstrap.digest("dev"))
    monkeypatch.setattr(sys, "argv", ["bootstrap", "--venv", "env", "--extras", "dev"])
    monkeypatch.setattr(bootstrap, "make_venv", lambda venv: pytest.fail("made it again"))
    assert bootstrap.main() == 0


def test_a_folder_that_is_not_a_virtual_environment_is_never_deleted(bootstrap, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(SystemExit, match="no virtual environment"):
        bootstrap.make_venv(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_the_error_for_a_python_without_venv_names_the_missing_package(
    bootstrap, tmp_path, monkeypatch
):
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="has no venv module; install it"):
        bootstrap.make_venv(tmp_path / "env")


def test_an_explicit_torch_index_takes_precedence_over_every_probe(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "answers", lambda url: pytest.fail("probed"))
    monkeypatch.setenv("TORCH_INDEX", "https://example.org/simple")
    assert bootstrap.torch_index(sys.executable) == "https://example.org/simple"
    monkeypatch.setenv("TORCH_INDEX", "")
    assert bootstrap.torch_index(sys.executable) is None


def test_an_unreachable_index_is_not_an_error(bootstrap, monkeypatch):
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    monkeypatch.setattr(bootstrap, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(bootstrap, "pip_offers_cpu_torch", lambda python: False)
    monkeypatch.setattr(bootstrap, "answers", lambda url: False)
    assert bootstrap.torch_index(sys.executable) is None


def test_a_failed_installation_shows_the_end_of_the_log(bootstrap, tmp_path, capsys):
    failing = [sys.executable, "-c", "print('no matching distribution'); raise SystemExit(1)"]
    with pytest.raises(SystemExit, match="whole log is in"):
        bootstrap.run_logged(failing, tmp_path / "install.log")
    assert "no matching distribution" in capsys.readouterr().err


def test_an_index_that_cannot_be_reached_is_named_before_pip_tries_it(
    bootstrap, monkeypatch, tmp_path, free_url
):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", free_url.replace("//", "//me:secret@"))
    with pytest.raises(SystemExit, match=f"index {free_url} does not answer: .*refused"):
        bootstrap.require_index(Path(sys.executable))


def test_an_empty_setting_of_the_index_counts_as_none(bootstrap, monkeypatch, capsys):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "")
    monkeypatch.setattr(bootstrap, "unreachable", lambda url: None)
    bootstrap.require_index(Path(sys.executable))
    assert f"asking the package index {bootstrap.PYPI}" in capsys.readouterr().out


def test_each_phase_of_pip_is_one_line(bootstrap, tmp_path, capsys):
    said = [
        "Collecting a",
        "  Downloading a.whl",
        "Collecting b",
        "Installing collected packages",
    ]
    code = "\n".join(f"print({line!r})" for line in said)
    bootstrap.run_logged([sys.executable, "-c", code], tmp_path / "install.log")
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["choosing and downloading packages", "installing the packages"]
    assert said == (tmp_path / "install.log").read_text().splitlines()[-4:]


def test_every_option_has_a_help_text(root):
    command = [sys.executable, "scripts/bootstrap.py", "--help"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "--extras" in done.stdout
