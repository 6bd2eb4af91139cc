"""Identity of an environment: what it registers with, and where the run shows it."""

from __future__ import annotations

from atroposlib import __version__
from atroposlib.cli.env_files import load
from atroposlib.envs.settings import identity as identities
from atroposlib.envs.settings.identity import identity
from atroposlib.utils.command.references import Listed
from atroposlib.wire import EnvSource

CODE = """
from atroposlib.envs import environment

@environment({data!r})
async def {name}(task, model):
    return 1.0
"""


def of(path):
    env_cls = load(str(path))
    return identity(env_cls, env_cls.config_init()[0])


def test_an_environment_of_this_package_has_its_version():
    env_cls = load("letters")
    found = identity(env_cls, env_cls.config_init()[0])
    assert (found.package, found.version) == ("atroposlib", __version__)


def test_the_digest_follows_the_module_and_its_data(tmp_path):
    data, module = tmp_path / "rows.jsonl", tmp_path / "written_identity.py"
    data.write_text('{"id": 1}\n')
    module.write_text(CODE.format(data=str(data), name="one"))
    first = of(module)
    assert (first.package, first.version) == ("", "")
    assert of(module) == first
    data.write_text('{"id": 2}\n')
    second = of(module)
    module.write_text(CODE.format(data=str(data), name="two"))
    assert len({first.digest, second.digest, of(module).digest}) == 3


def test_an_installed_package_is_found_by_its_module(tmp_path, monkeypatch):
    module = tmp_path / "written_installed.py"
    module.write_text(CODE.format(data=["a"], name="one"))
    listed = [Listed("one", "written_installed:one", "", "games", "1.4")]
    monkeypatch.setattr(identities, "installed_environments", lambda: listed)
    assert of(module) == EnvSource(package="games", version="1.4", digest=of(module).digest)
