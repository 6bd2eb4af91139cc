"""Export of an environment: what the written package imports and requires; what is refused."""

from __future__ import annotations

import ast
import sys

import pytest

from atroposlib.cli import export
from atroposlib.errors import ConfigError
from atroposlib.utils.command.distribution import requirement

ENVIRONMENT = """
from atroposlib.envs import environment

@environment({data!r})
async def written_one(task, model):
    return 1.0
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(data):
        path = tmp_path / "written_one.py"
        path.write_text(ENVIRONMENT.format(data=data))
        return str(path)

    yield write
    sys.modules.pop("written_one", None)


def test_a_file_of_no_package_is_copied_into_the_written_one(file, tmp_path, capsys):
    out = tmp_path / "out"
    given = f"{file(['a'])}:written_one"
    assert export.main([given, "--to", "verifiers", "--out", str(out)]) == 0
    assert "next: pip install" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    module, copy = "written_one_verifiers.py", "written_one_environment.py"
    assert names == {module, copy, "README.md", "pyproject.toml"}
    text = (out / module).read_text()
    ast.parse(text)
    assert (
        'load(str(Path(__file__).with_name("written_one_environment.py:written_one")))' in text
    )
    assert f'only-include = ["{module}", "{copy}"]' in (out / "pyproject.toml").read_text()
    with pytest.raises(ConfigError, match="not empty"):
        export.main([given, "--to", "verifiers", "--out", str(out)])


def test_what_the_written_package_requires_is_by_reference():
    assert export.found("letters").requires == [requirement()]
    assert export.found("letters").copied == {}
    assert export.found("textworld").requires == [requirement("[textworld]")]
    assert export.found("gymnasium:Taxi-v4").expression == 'load("gymnasium:Taxi-v4")'
    assert "[gymnasium]" in export.found("gymnasium:Taxi-v4").requires[0]


def test_classes_and_data_outside_of_packages_are_refused(file, tmp_path):
    with pytest.raises(ConfigError, match="only environments of @environment"):
        export.found("gsm8k_server")
    (tmp_path / "rows.jsonl").write_text('{"q": 1}\n')
    with pytest.raises(ConfigError, match="which no package holds"):
        export.found(file(str(tmp_path / "rows.jsonl")))
