"""atropos env new NAME: write the package of a new environment, which works at once."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from atroposlib.errors import ConfigError
from atroposlib.utils.command.parser import CommandParser

PLACEHOLDER = "NAME"  # in the names and texts of the files in scaffold/


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print the next commands."""
    parser = CommandParser(prog="atropos env new", description=__doc__)
    parser.add_argument("name", help="of the environment and its folder, such as wordle")
    folder = Path(parser.parse_args(argv).name)
    name = folder.name.replace("-", "_")
    print(f"{folder}/: {', '.join(write(name, folder))}")
    print(f"next: cd {folder} && python -m pytest -q")
    print(f"      atropos env try {name}.py -n 3  # a server at port 9001, see README.md")
    print("      atropos run local --config train.yaml")
    return 0


def write(name: str, folder: Path) -> list[str]:
    """Write the files of the environment ``name`` into ``folder``; returns their names.

    Raises ConfigError: the name cannot be imported, or the folder is in use.
    """
    taken = name in sys.stdlib_module_names or name == "atroposlib"
    if not name.isidentifier() or keyword.iskeyword(name) or taken:
        raise ConfigError(
            f"{name!r} cannot name an environment: use letters, such as my_{name}"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not empty: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for template in files("atroposlib.cli").joinpath("scaffold").iterdir():
        target = template.name.removesuffix(".txt").replace(PLACEHOLDER, name)
        text = template.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
        (folder / target).write_text(text, encoding="utf-8")
        written.append(target)
    return sorted(written)
