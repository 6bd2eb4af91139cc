"""Identity of an environment: its package, version, and a digest of its module and data."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from atroposlib import __version__
from atroposlib.envs.settings.config import SLOT
from atroposlib.utils.command.references import digest, installed_environments
from atroposlib.wire import EnvSource

logger = logging.getLogger(__name__)
OURS = ("atroposlib.", "environments.")


def identity(env_cls: type, config: Any) -> EnvSource:
    """Package, version and digest of the class with its settings; reads its files.

    A file that belongs to no installed package has an empty package and version.
    """
    module = sys.modules.get(env_cls.__module__)
    files = [path for path in (module_files(module), *data_files(env_cls, config)) if path]
    content = digest(files)
    if env_cls.__module__.startswith(OURS):
        return EnvSource(package="atroposlib", version=__version__, digest=content)
    for environment in installed_environments():
        if (
            environment.module.partition(":")[0] == env_cls.__module__
            and not environment.problem
        ):
            return EnvSource(
                package=environment.package, version=environment.version, digest=content
            )
    return EnvSource(digest=content)


def module_files(module: Any) -> Path | None:
    """The module's file, or the folder of a package."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path


def data_files(env_cls: type, config: Any) -> list[Path]:
    """Local files of the data of the class with its settings."""
    named = getattr(env_cls, SLOT).local_data(env_cls, config)
    return [path for path in map(Path, named) if path.exists()]


def report_path(source: EnvSource, name: str) -> Path:
    """Path of a passing report of `atropos env validate`, by package, name and digest."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest_of = source.digest.rpartition(":")[2]
    file = f"{source.package}-{source.version}-{name}-{digest_of}.json"
    return Path(cache) / "atroposlib" / "validated" / file


def checked_identity(env_cls: type, config: Any, name: str) -> EnvSource:
    """The identity; warns of an installed package that did not pass `atropos env validate`."""
    source = identity(env_cls, config)
    foreign = source.package not in ("", "atroposlib")
    if foreign and not report_path(source, name).is_file():
        about = f"{source.package} {source.version}"
        logger.warning("%s has no passing report: atropos env validate %s", about, name)
    return source
