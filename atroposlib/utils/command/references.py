"""References to environments, and the installed packages that name them. Imports nothing.

    name | package:name | file.py[:attribute] | adapter:argument

Packages name environments by entry points of the group ``atropos.environments``:
``wordle = "wordle:Wordle"`` or, for a module with a single environment, ``wordle = "wordle"``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path

from atroposlib.errors import ConfigError
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.io import file_sha256

GROUP = "atropos.environments"
GROUPS = (GROUP, "atroposlib.environments")  # the second: packages of before 0.3
USAGE = "a name of `atropos env list`, PACKAGE:NAME, FILE.py[:NAME] or ADAPTER:ARGUMENT"
ADAPTER = "adapter"  # kind of environments of foreign packages, which take an argument
DIGEST_CHARS = 16
SKIPPED = ("__pycache__", ".git", ".venv")


@dataclass(frozen=True)
class Listed:
    """Environment that a name leads to."""

    name: str
    module: str  # or module:attribute
    about: str
    package: str = ""
    version: str = ""
    kind: str = ""  # kind of its card, or the first keyword of its package
    problem: str = ""  # why it cannot be used

    @property
    def is_adapter(self) -> bool:
        return self.package == "atroposlib" and self.kind == ADAPTER


@dataclass(frozen=True)
class Reference:
    """Target of a word: a file or a listed environment, with an attribute or an argument."""

    file: Path | None = None
    listed: Listed | None = None
    attribute: str = ""
    argument: str = ""


def installed_environments(found: Iterable[Distribution] | None = None) -> list[Listed]:
    """Environments of installed packages, by their metadata alone.

    A package whose metadata cannot be used is listed with the reason.
    """
    listed: dict[tuple[str, str], Listed] = {}
    seen: set[str] = set()
    for package in distributions() if found is None else found:
        try:
            name = _name(package)
            own = [] if name.lower() in seen else list(_points(package))
            seen.add(name.lower())  # the first on the path hides later packages of its name
            for point in own:
                listed.setdefault((name, point.name), _entry_of(package, point))
        except (KeyError, TypeError, ValueError, OSError) as error:
            where = getattr(package, "_path", "?")  # there is no public name of the folder
            name = getattr(where, "stem", "") or "?"
            problem = f"broken metadata: {type(error).__name__}: {error}"
            listed[name, "?"] = Listed("?", "", "", name, problem=problem)
    return sorted(listed.values(), key=lambda entry: (entry.name, entry.package))


def _name(package: Distribution) -> str:
    """Name in the metadata, whose whole parse would take 0.1 s for all installed packages."""
    text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    line = re.search(r"^Name: *(\S+) *$", text, re.MULTILINE)
    return line[1] if line else package.metadata["Name"] or ""


def _points(package: Distribution) -> Iterator[EntryPoint]:
    text = package.read_text("entry_points.txt") or ""
    if any(group in text for group in GROUPS):  # most packages have none, and are not parsed
        yield from (point for point in package.entry_points if point.group in GROUPS)


def _entry_of(package: Distribution, point: EntryPoint) -> Listed:
    about = package.metadata
    module = point.value.partition(":")[0].strip()
    problem = ""
    if not module.replace(".", "").isidentifier():
        problem = f"its entry point {point.value!r} is no module"
    elif find_spec(module.partition(".")[0]) is None:
        problem = f"its module {module} is missing"
    return Listed(
        name=point.name,
        module=point.value,
        about=about.get("Summary") or "",  # type: ignore[attr-defined]  # a Message
        package=about["Name"],
        version=package.version,
        kind=(about.get("Keywords") or "").split(",")[0],  # type: ignore[attr-defined]
        problem=problem,
    )


def resolve(text: str, known: Sequence[Listed]) -> Reference:
    """Target of ``text`` among the ``known`` environments.

    Raises ConfigError: nothing, or several packages.
    """
    place, _, rest = text.partition(":")
    if place.endswith(".py"):
        return Reference(file=Path(place), attribute=rest)
    if rest:
        adapter = next(
            (entry for entry in known if entry.name == place and entry.is_adapter), None
        )
        if adapter is not None:
            return Reference(listed=adapter, argument=rest)
        matches = [entry for entry in known if (entry.package, entry.name) == (place, rest)]
    else:
        matches = [entry for entry in known if entry.name == text]
        # A module of this package (gsm8k_server) may be named as its file is.
        matches = matches or [
            entry for entry in known if entry.module.rpartition(".")[2] == text
        ]
    if not matches:
        names = [entry.name for entry in known] + [
            f"{entry.package}:{entry.name}" for entry in known
        ]
        hint = did_you_mean(text, names)
        raise ConfigError(f"no file and no environment {text!r}{hint} (`atropos env list`)")
    if len(matches) > 1:
        full = " or ".join(f"{entry.package}:{entry.name}" for entry in matches)
        raise ConfigError(
            f"{len(matches)} packages name an environment {text!r}: write {full}"
        )
    if matches[0].problem:
        raise ConfigError(f"{text}: {matches[0].package}: {matches[0].problem}; reinstall it")
    _, _, attribute = matches[0].module.partition(":")
    return Reference(listed=matches[0], attribute=attribute)


def digest(files: Iterable[Path]) -> str:
    """Digest of the names and contents of files and folders, e.g. "sha256:9f86d081884c7d65"."""
    total = hashlib.sha256()
    for path in files:
        inside = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in inside:
            name = file.relative_to(path.parent).as_posix()
            if not file.is_file() or any(part in SKIPPED for part in file.parts):
                continue
            total.update(f"{name}\0{file_sha256(file)}\n".encode())
    return f"sha256:{total.hexdigest()[:DIGEST_CHARS]}"
