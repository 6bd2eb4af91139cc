"""Check the name of a model, and load its tokenizer, without torch where possible."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.forms import with_ids
from atroposlib.utils.tokenizers.plain import INSTALL, PlainTokenizer, obstacle, read_json_file

# Classes that add nothing to tokenizer.json.
PLAIN = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
SMOLLM2_DIRECTORY = "smollm2-135m-instruct"  # folder of the quickstart's model in the cache
MAKE_SMOLLM2 = (sys.executable, "-m", "atroposlib.quickstart.models")
# A second thread that imports transformers meanwhile gets the module without its classes.
_IMPORTING = threading.Lock()
HUB_TIMEOUT_S = 5.0  # the hub's own client tries for more than a minute


def cache_dir() -> Path:
    """``$ATROPOS_CACHE``, else ``atropos`` in the user's cache directory."""
    if chosen := os.environ.get("ATROPOS_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "atropos"


def local_model(name: str) -> str:
    """Directory of ``smollm2``, the quickstart's model, in the cache; else ``name``."""
    known = name == "smollm2" and not Path(name).exists()
    return str(cache_dir() / SMOLLM2_DIRECTORY) if known else name


def is_path(name: str) -> bool:
    """Whether ``name`` is a path, and no hub name (``owner/name``)."""
    inside = "/" in name and (name.count("/") > 1 or Path(name).parent.is_dir())
    return inside or name.startswith((".", "~", "/")) or Path(name).exists()


def require_model(name: str) -> None:
    """Check that ``name`` is a directory, or a model of the hub that can be loaded now.

    The quickstart's model is made if it is missing: downloaded and converted, in a minute.
    If the hub does not answer a request, its client goes offline. Raises ConfigError.
    """
    if Path(name).is_dir():
        return
    if is_path(name):
        if name == str(cache_dir() / SMOLLM2_DIRECTORY) and subprocess.call(MAKE_SMOLLM2) == 0:
            return
        raise ConfigError(f"no directory {name}")
    import httpx
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.is_offline_mode():
        try:
            httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
            return
        except httpx.HTTPError:
            constants.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"] = True, "1"
    files = ("config.json", "tokenizer_config.json")
    if not any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
        made = "; atropos quickstart --model tiny makes one" if name == "tiny" else ""
        raise ConfigError(
            f"no directory {name}, and no model of that name without the hub{made}"
        )


def load_tokenizer_named(name: str) -> Any:
    """The tokenizer of ``AutoTokenizer.from_pretrained(name)``.

    AutoTokenizer imports the model classes and torch, which takes three seconds and some
    hundred MB of every environment process. A directory without a special tokenizer class is
    loaded directly, and without transformers by :class:`PlainTokenizer`. Chats become ids unless
    ``return_dict=True``, in each release of transformers. Raises ConfigError: there is no
    tokenizer of that name, or it needs transformers, which are not installed.
    """
    directory = Path(name)
    plain = _is_plain(directory)
    if find_spec("transformers") is None:
        reason = obstacle(directory) if plain else _not_plain(directory)
        if reason:
            raise ConfigError(
                f"the tokenizer {name}: {reason}, which needs transformers: {INSTALL}"
            )
        return PlainTokenizer(directory)
    require_model(name)
    kind = "PreTrainedTokenizerFast" if plain else "AutoTokenizer"
    with _IMPORTING:
        import transformers

        loader = getattr(transformers, kind)
    try:
        return with_ids(loader.from_pretrained(name))
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"no tokenizer can be loaded from {name!r}: {reason}") from error


@lru_cache(maxsize=4)
def local_tokenizer(name: str) -> Any:
    """The tokenizer of a directory, or of a name in the local cache; None if it is not here.

    Nothing is ever downloaded.
    """
    directory = Path(local_model(name))
    try:
        if not directory.is_dir():
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(name, "tokenizer.json")
            if not isinstance(cached, str):
                return None
            directory = Path(cached).parent
        return load_tokenizer_named(str(directory))
    except (ConfigError, ImportError, OSError, ValueError, KeyError):
        return None


def tokenizer_of_run(name: str | None, run: Path) -> str | None:
    """Name of the tokenizer that a run noted; a relative path is completed.

    Such a path is relative to the folder where the run was started, which lies above its data:
    a reader in another folder would have no texts.
    """
    if name is None or Path(name).exists():
        return name
    folders = (parent / name for parent in run.resolve().parents)
    return next((str(folder) for folder in folders if folder.is_dir()), name)


def _is_plain(directory: Path) -> bool:
    kind = read_json_file(directory / "tokenizer_config.json").get("tokenizer_class")
    return kind in PLAIN and (directory / "tokenizer.json").is_file()


def _not_plain(directory: Path) -> str:
    """The reason why a name is no directory that is read without transformers."""
    if not directory.is_dir():
        return f"{directory} is no directory here but a hub name"
    kind = read_json_file(directory / "tokenizer_config.json").get("tokenizer_class")
    return f"its tokenizer is a {kind}" if kind else f"{directory} has no tokenizer.json"
