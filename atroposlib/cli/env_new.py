"""atropos env new NAME: write the package of a new environment, which works at once.

atropos env new wordle            # one question, one answer
atropos env new shop --tools      # a tool that the model calls
atropos env new battleship --game # several turns
atropos env new sums --class      # a subclass of BaseEnv, with its own groups
atropos loss new softclip         # a loss for the trainer, with the tests of the built-in ones
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from atroposlib.errors import ConfigError
from atroposlib.utils.command.distribution import requirement
from atroposlib.utils.command.parser import CommandParser

PLACEHOLDER = "NAME"  # placeholder in the names and texts of the files in scaffold/
GOLD = "| `gold.jsonl` | answers with the rewards that they have to get |\n"
# Kind -> (target name of each file of scaffold/, replacements of placeholders).
QUESTION = "question"
KINDS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    QUESTION: (
        {"NAME.py": "NAME.py", "test_NAME.py": "test_NAME.py", "gold.jsonl": "gold.jsonl"},
        {
            "<<KIND>>": "mathematics",
            "<<TURNS>>": "1",
            "<<GOLD>>": GOLD,
            "0 to 1 ": "0 to 1.1 ",
        },
    ),
    "tools": (
        {"tools.py": "NAME.py", "test_checks.py": "test_NAME.py"},
        {"<<KIND>>": "tools", "<<TURNS>>": "2", "<<GOLD>>": ""},
    ),
    "game": (
        {"game.py": "NAME.py", "test_checks.py": "test_NAME.py"},
        {"<<KIND>>": "games", "<<TURNS>>": "1-6", "<<GOLD>>": ""},
    ),
    "class": (
        {"class.py": "NAME.py", "test_checks.py": "test_NAME.py"},
        {"<<KIND>>": "mathematics", "<<TURNS>>": "1", "<<GOLD>>": ""},
    ),
}
SHARED = ("README.md", "pyproject.toml", "train.yaml")
LOSS = {
    "loss.py": "NAME.py",
    "test_loss.py": "test_NAME.py",
    "loss_README.md": "README.md",
    "loss_pyproject.toml": "pyproject.toml",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print the next commands."""
    parser = CommandParser(prog="atropos env new", description=__doc__)
    parser.add_argument("name", help="of the environment and its folder, such as wordle")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tools", action="store_true", help="with a tool that is called")
    kind.add_argument("--game", action="store_true", help="of several turns")
    kind.add_argument("--class", action="store_true", help="a subclass of BaseEnv")
    options = parser.parse_args(argv)
    folder = Path(options.name)
    name = folder.name.replace("-", "_")
    chosen = next((kind for kind in KINDS if vars(options).get(kind)), QUESTION)
    print(f"{folder}/: {', '.join(write_project(name, folder, chosen))}")
    print(f"next: cd {folder} && python -m pytest -q")
    print(f"      atropos env validate {name}.py")
    print(f"      atropos env try {name}.py -n 3  # a server at port 9001, see README.md")
    print("      atropos run local --config train.yaml")
    return 0


def write_loss(argv: Sequence[str] | None = None) -> int:
    """Write the package of a loss, with its tests, and print the next commands."""
    parser = CommandParser(prog="atropos loss new", description=write_loss.__doc__)
    parser.add_argument("name", help="of the loss and its folder, such as softclip")
    folder = Path(parser.parse_args(argv).name)
    name = folder.name.replace("-", "_")
    print(f"{folder}/: {', '.join(write_files(name, folder, LOSS, {}, 'a loss'))}")
    print(f"next: cd {folder} && python -m pytest -q")
    print(f"      atropos run local --config RUN.yaml loss.loss={folder}/{name}.py:loss")
    return 0


def write_project(name: str, folder: Path, kind: str = QUESTION) -> list[str]:
    """Write the files of the environment ``name`` into ``folder``; returns their names.

    Raises ConfigError: the name cannot be imported, or the folder is in use.
    """
    chosen, texts = KINDS[kind]
    return write_files(name, folder, {**{file: file for file in SHARED}, **chosen}, texts)


def write_files(
    name: str,
    folder: Path,
    sources: Mapping[str, str],
    texts: Mapping[str, str],
    what: str = "an environment",
) -> list[str]:
    """Write files of scaffold/ under other names, with ``texts`` filled in; raises as above."""
    taken = name in sys.stdlib_module_names or name == "atroposlib"
    if not name.isidentifier() or keyword.iskeyword(name) or taken:
        raise ConfigError(f"{name!r} cannot name {what}: use letters, such as my_{name}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not empty: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source, target in sources.items():
        template = files("atroposlib.cli").joinpath("scaffold", f"{source}.txt")
        text = template.read_text(encoding="utf-8")
        named = {"<<REQUIREMENT>>": requirement(), PLACEHOLDER: name}
        for placeholder, value in {**texts, **named}.items():
            text = text.replace(placeholder, value)
        target = target.replace(PLACEHOLDER, name)
        (folder / target).write_text(text, encoding="utf-8")
        written.append(target)
    return sorted(written)
