"""scripts/same_code.py: which changes of Python files it accepts as prose."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = '"""Old."""\n\n\ndef f(x):\n    """Old."""\n    # old\n    return x + 1\n'


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "a.py").write_text(BEFORE)
    git("init", "-q")
    git("add", ".")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    git(*who, "-c", "commit.gpgsign=false", "commit", "-qm", "base")
    return tmp_path


@pytest.fixture
def check(root, checkout):
    def run() -> tuple[int, list[str]]:
        command = [sys.executable, str(root / "scripts/same_code.py"), "HEAD"]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    return run


def test_docstrings_and_comments_may_change(checkout, check):
    (checkout / "a.py").write_text(BEFORE.replace("Old", "New").replace("old", "new"))
    assert check() == (0, ["1 changed, 0 in code"])


def test_a_changed_expression_is_listed(checkout, check):
    (checkout / "a.py").write_text(BEFORE.replace("x + 1", "x + 2"))
    assert check() == (1, ["a.py: code differs", "1 changed, 1 in code"])


def test_a_renamed_file_is_compared_with_its_previous_version(checkout, check):
    subprocess.run(["git", "mv", "a.py", "b.py"], cwd=checkout, check=True)
    (checkout / "b.py").write_text(BEFORE.replace("# old", "# new"))
    assert check() == (0, ["1 changed, 0 in code"])


def test_an_added_or_deleted_file_is_listed(checkout, check):
    (checkout / "a.py").unlink()
    (checkout / "new.py").write_text("x = 1\n")
    assert check() == (1, ["a.py: deleted", "new.py: added", "2 changed, 2 in code"])
