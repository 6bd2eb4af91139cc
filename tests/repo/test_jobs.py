"""Jobs of a submission: those whose files changed since everything passed."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.repo import jobs
from tests.repo.jobs import JOBS, Checkout, Job, targets, to_run

FILES = {
    "README.md": "",
    "pyproject.toml": "",
    "Makefile": "",
    "atroposlib/__init__.py": "",
    "atroposlib/store.py": "ROWS = 1",
    "atroposlib/losses.py": "RATE = 1",
    "atroposlib/pages.py": "from atroposlib.losses import RATE",
    "tests/test_store.py": "from hypothesis import given\nfrom atroposlib.store import ROWS",
    "tests/test_kills.py": "import pytest\npytest.mark.campaign\nRUN = 'atroposlib.pages'",
    "tests/test_plain.py": "from atroposlib.store import ROWS",
}
STORE, KILLS = "tests/test_store.py", "tests/test_kills.py"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Digests of a small repository, after it was changed as given."""
    pages = {"pages": Job(("atroposlib.pages",), ("static/*.js",))}
    monkeypatch.setattr(jobs, "JOBS", pages)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def digests(**changes):
        for path, text in {**FILES, **changes}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return Checkout(tmp_path).digests()

    return digests


@pytest.mark.parametrize(
    "changed, run",
    [
        ("README.md", []),
        ("tests/test_plain.py", []),
        ("atroposlib/store.py", [STORE]),
        ("atroposlib/pages.py", ["pages", KILLS]),
        ("atroposlib/losses.py", ["pages", KILLS]),
        ("static/chart.js", ["pages"]),
        ("tests/test_store.py", [STORE]),
        ("Makefile", ["pages", KILLS, STORE]),
        ("tests/repo/jobs.py", ["pages", KILLS, STORE]),
    ],
)
def test_a_change_runs_the_jobs_that_it_reaches(checkout, changed, run):
    before = checkout()
    assert to_run(before, before) == []
    after = checkout(**{changed: FILES.get(changed, "") + "\nMORE = 1\n"})
    assert to_run(after, before) == run


def test_without_a_record_everything_runs(checkout):
    assert to_run(checkout(), {}) == ["pages", KILLS, STORE]


def test_some_campaigns_are_named_and_all_are_one_word():
    files = ["tests/a/test_a.py", "tests/test_b.py"]
    assert targets(["wheel"], 2) == ["wheel"]
    assert targets(["wheel", *files], 3) == ["wheel", f"campaign FILES={files[0]},{files[1]}"]
    assert targets(files, 2) == ["campaign"]


@pytest.mark.slow
def test_every_root_and_pattern_exists():
    checkout = jobs.current()
    named = {**JOBS, **jobs.MORE}
    assert jobs.MORE.keys() <= checkout.campaigns().keys()
    for job in named.values():
        for root in job.roots:
            assert any(f"{name}.".startswith(f"{root}.") for name in checkout.graph), root
        for pattern in job.patterns:
            assert list(checkout.root.glob(pattern)), pattern
    assert all((checkout.root / path).is_file() for path in jobs.COMMON)


@pytest.mark.slow
def test_a_record_of_everything_leaves_nothing_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    monkeypatch.setattr(jobs, "RECORD", jobs.Path("passed.json"))
    assert jobs.main(["--record"]) == 0
    assert JOBS.keys() <= json.loads((tmp_path / "passed.json").read_text()).keys()
    assert jobs.main([]) == 0 and capsys.readouterr().out.split() == []
    assert jobs.main(["--all"]) == 0
    assert capsys.readouterr().out.split() == [*sorted(JOBS), "campaign"]
