"""References to environments, and what the metadata of installed packages lists."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.command.references import (
    GROUP,
    Listed,
    digest,
    installed_environments,
    resolve,
)

KNOWN = [
    Listed("gsm8k", "atroposlib.environments.gsm8k_server", "", "atroposlib"),
    Listed("gymnasium", "atroposlib.adapters.gymnasium", "", "atroposlib", kind="adapter"),
    Listed("wordle", "wordle:Wordle", "", "word-games"),
    Listed("wordle", "other", "", "others"),
    Listed("chess", "chess_env", "", "chess-env", problem="its module is missing"),
]


@pytest.mark.parametrize(
    ("text", "module", "attribute", "argument"),
    [
        ("gsm8k", "atroposlib.environments.gsm8k_server", "", ""),
        ("gsm8k_server", "atroposlib.environments.gsm8k_server", "", ""),
        ("word-games:wordle", "wordle:Wordle", "Wordle", ""),
        ("gymnasium:Taxi-v4", "atroposlib.adapters.gymnasium", "", "Taxi-v4"),
        ("gymnasium:ALE/Pong:v5", "atroposlib.adapters.gymnasium", "", "ALE/Pong:v5"),
    ],
)
def test_a_reference_leads_to_one_of_the_list(text, module, attribute, argument):
    found = resolve(text, KNOWN)
    assert found.listed.module == module
    assert (found.attribute, found.argument) == (attribute, argument)


def test_a_reference_to_a_file_may_name_an_attribute():
    assert resolve("games/chess.py:Chess", []).file == Path("games/chess.py")
    assert resolve("games/chess.py:Chess", []).attribute == "Chess"
    assert resolve("chess.py", KNOWN).listed is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wordle", "2 packages name .* write word-games:wordle or others:wordle"),
        ("gsm8", "did you mean gsm8k"),
        ("word-game:wordle", "did you mean word-games:wordle"),
        ("chess", "chess-env: its module is missing; reinstall it"),
    ],
)
def test_a_reference_that_leads_nowhere_or_to_several_names_the_remedy(text, says):
    with pytest.raises(ConfigError, match=says):
        resolve(text, KNOWN)


@pytest.fixture
def package(tmp_path):
    def write(name, points, *, metadata=None, keywords="game"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        about += f"Summary: About {name}\nKeywords: {keywords}\n"
        (folder / "METADATA").write_text(about if metadata is None else metadata)
        (folder / "entry_points.txt").write_text(points)

    write.found = lambda: installed_environments(Distribution.discover(path=[str(tmp_path)]))
    return write


def test_packages_are_listed_by_their_metadata_without_an_import(package):
    package("games", f"[{GROUP}]\nwordle = json.tool:Wordle\n")
    package("older", "[atroposlib.environments]\nsums = json\n[console_scripts]\na = b:c\n")
    first, second = package.found()
    assert first == Listed("sums", "json", "About older", "older", "1.0", "game")
    assert (second.name, second.module) == ("wordle", "json.tool:Wordle")


def test_a_broken_package_is_one_line_and_hides_no_other(package):
    package("games", f"[{GROUP}]\nwordle = json\n")
    package("gone", f"[{GROUP}]\nchess = no_such_module_anywhere:Chess\n")
    package("odd", f"[{GROUP}]\nodd = not a module!\n")
    package("unreadable", f"[{GROUP}]\nno equals sign\n")
    found = {one.package.partition("-")[0]: one.problem for one in package.found()}
    assert found.keys() == {"games", "gone", "odd", "unreadable"}
    assert found["games"] == "" and "no_such_module_anywhere is missing" in found["gone"]
    assert "is no module" in found["odd"] and "broken metadata" in found["unreadable"]


def test_the_digest_follows_names_and_contents_and_no_caches(tmp_path):
    (tmp_path / "game").mkdir()
    (tmp_path / "game/words.txt").write_text("apple")
    before = digest([tmp_path / "game"])
    (tmp_path / "game/__pycache__").mkdir()
    (tmp_path / "game/__pycache__/x.pyc").write_text("x")
    assert digest([tmp_path / "game"]) == before and before.startswith("sha256:")
    (tmp_path / "game/words.txt").write_text("pear")
    assert digest([tmp_path / "game"]) != before
