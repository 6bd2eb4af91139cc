"""Fill a folder with the wheels that `make gpu` needs in addition to torch and transformers.

    python scripts/gpu_wheels.py                      .wheels, for CPython 3.12 on Linux x86-64

The folder travels with the clone to a machine without a network, whose Python has torch and
transformers; `make gpu` finds it there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_BYTES = 60 * 10**6
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
# Native packages that torch or transformers bring in their versions.
PRESENT = {"hf_xet", "huggingface_hub", "numpy", "regex", "safetensors", "tokenizers"}
# For adapters, and for the comparison with TRL; pyarrow and pandas have to be there.
WITHOUT_DEPENDENCIES = (
    "peft",
    "accelerate",
    "psutil",
    "trl",
    "datasets",
    "dill",
    "multiprocess",
    "xxhash",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / ".wheels")
    parser.add_argument("--python", default="3.12")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for old in options.out.glob("*.whl"):
        old.unlink()
    download(options, core_requirements())
    download(options, ["--no-deps", *WITHOUT_DEPENDENCIES])
    for wheel in options.out.glob("*.whl"):
        if wheel.name.split("-")[0].lower() in PRESENT:
            wheel.unlink()
    wheels = sorted(options.out.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{options.out}: {len(wheels)} wheels, {size / 1e6:.1f} MB")
    if size > LIMIT_BYTES:
        print(f"more than {LIMIT_BYTES / 1e6:.0f} MB", file=sys.stderr)
        return 1
    return 0


def core_requirements() -> list[str]:
    """The dependencies of the package without any extra."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    return re.findall(r'"(.+)"', listed[1])


def download(options: argparse.Namespace, requirements: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--dest", str(options.out), "--constraint", str(ROOT / "constraints.txt")]
    command += ["--python-version", options.python, "--implementation", "cp"]
    for glibc in GLIBC:
        command += ["--platform", f"{glibc}_x86_64"]
    subprocess.run([*command, *requirements], check=True)


if __name__ == "__main__":
    raise SystemExit(main())
