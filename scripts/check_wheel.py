"""Build the wheel, install it alone into a new environment, and run what it promises.

    python scripts/check_wheel.py [--python python3.12] [--keep DIR] [--max-mb 300]

    build -> venv -> pip install WHEEL -> --help of every command -> imports -> env new, test,
    process against a fake server

No extra is installed: torch, transformers and math-verify are missing on purpose. Needs the
standard library, pip and what pip builds with. Prints a line per check; exit status 1 if any
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WAIT_S = 600.0
MISSING = ("torch", "transformers", "math_verify", "sympy")
MAX_HELP_CPU_S = 1.5  # a loaded machine; each needs a fraction of it
# Words of atropos -> the extra that its message has to name.
LACKING = {
    "train grpo --model-name m": "train",
    "infer --model m": "inference",
    "chat m": "inference",
    "quickstart --model tiny": "quickstart",
    "data sft lines.jsonl --tokenizer owner/model": "transformers",
}
# Program of the last check: a fake server in this process, an environment in another.
PROCESS = """
import json, subprocess, sys
from pathlib import Path
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET, write_char_tokenizer

model = str(write_char_tokenizer(Path("model"), ASCII_ALPHABET))
names = ["--openai.model_name", model, "--env.tokenizer_name", model]
with FakeInference(reply=lambda prompt, i: "5").running() as url:
    def run(*words):
        print("$", *words, flush=True)
        subprocess.run(words, check=True, timeout=120)

    run("atropos", "env", "try", "wordle/wordle.py", "-n", "1", "--url", f"{url}/v1", "--model", model)
    flags = ["--openai.base_url", f"{url}/v1", *names, "--env.total_steps", "2"]
    flags += ["--env.group_size", "2", "--env.use_wandb", "false"]
    run("atropos", "env", "run", "wordle/wordle.py", "process", *flags,
        "--env.data_path_to_save_groups", "wordle.jsonl")
    run(sys.executable, "-m", "atroposlib.environments.copy_server", "process", *flags,
        "--env.data_path_to_save_groups", "copy.jsonl")
    gsm8k = ["atropos", "env", "run", "gsm8k", "process", *flags]
    done = subprocess.run(gsm8k, timeout=120, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode in (1, 2) and "pip install 'atropos-rl[math]'" in last, done.stderr
for name in ("wordle", "copy"):
    groups = [json.loads(line) for line in Path(name + ".jsonl").read_text().splitlines()]
    assert len(groups) == 2 and all(len(group["scores"]) == 2 for group in groups), groups
"""
GOLD = """
import sys; sys.path.insert(0, "wordle")
import test_wordle
[test() for name, test in vars(test_wordle).items() if name.startswith("test_")]
"""


class Failed(Exception):
    """A check failed; the message is the end of its output."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of the venv")
    parser.add_argument("--keep", type=Path, help="work here and keep it (a temporary folder)")
    parser.add_argument("--max-mb", type=int, default=300, help="bound on the environment")
    options = parser.parse_args()
    try:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            check(options.python, options.keep.resolve(), options.max_mb)
        else:
            with tempfile.TemporaryDirectory() as folder:
                check(options.python, Path(folder), options.max_mb)
    except Failed as failure:
        print(f"check_wheel: FAILED: {failure}", file=sys.stderr)
        return 1
    print("check_wheel: passed")
    return 0


def check(python: str, folder: Path, max_mb: int) -> None:
    """Run all checks in ``folder``, from the build on."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run(
        "build",
        [*pip, "wheel", "-q", "--no-deps", "-w", str(folder / "dist"), str(ROOT)],
        ROOT,
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    run("venv", [python, "-m", "venv", str(folder / "venv")], folder)
    bin_folder = folder / "venv/bin"
    inside = str(bin_folder / "python")
    constraints = str(ROOT / "constraints.txt")
    install = [inside, "-m", "pip", "install", "-q", "-c", constraints, str(wheel)]
    run("install", install, folder)
    size_mb = sum(f.stat().st_size for f in folder.rglob("venv/**/*") if f.is_file()) / 1e6
    print(
        f"check_wheel: {size_mb:.0f} MB with pip, the wheel {wheel.stat().st_size / 1e6:.1f}"
    )
    if size_mb > max_mb:
        raise Failed(f"the environment has {size_mb:.0f} MB, more than {max_mb}")
    code = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, sys.argv[1:])))"
    run("extras are absent", [inside, "-c", code, *MISSING], folder)
    page = (
        "from atroposlib.ui import assets; assert {'', 'app.js', 'uplot.js'} <= set(assets())"
    )
    run("the page", [inside, "-c", page], folder)
    for command in commands(inside, folder):
        seconds = run(f"{command} --help", [str(bin_folder / command), "--help"], folder)
        if seconds > MAX_HELP_CPU_S:
            raise Failed(f"{command} --help took {seconds:.1f} s of CPU")
    for words, extra in LACKING.items():
        require_extra(bin_folder / "atropos", words, extra, folder)
    for path in sorted((ROOT / "environments").rglob("*.py")):
        inner = path.relative_to(ROOT / "environments").with_suffix("")
        if inner.name == "__init__" or inner.parts[0] == "common":
            continue
        module = ".".join(("atroposlib.environments", *inner.parts))
        run(f"-m {module} --help", [inside, "-m", module, "process", "--help"], folder)
    path = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    run("env list", [str(bin_folder / "atropos"), "env", "list"], folder)
    run("env new", [str(bin_folder / "atropos"), "env", "new", "wordle"], folder)
    require_own_name(inside, folder)
    run("its gold answers", [inside, "-c", GOLD], folder)
    run("env try, process", [inside, "-c", PROCESS], folder, path)


def require_own_name(python: str, folder: Path) -> None:
    """Require that the written package needs this distribution, and none of the original's."""
    report = folder / "resolved.json"
    words = [python, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
    words += ["-c", str(ROOT / "constraints.txt"), "--report", str(report), "./wordle"]
    run("what the written package needs", words, folder)
    entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = {re.sub("[-_.]+", "-", entry["metadata"]["name"]).lower() for entry in entries}
    if "atropos-rl" not in names or "atroposlib" in names:
        raise Failed(f"the written package needs {', '.join(sorted(names))}")


def require_extra(command: Path, words: str, extra: str, folder: Path) -> None:
    """Require that a command without its extra fails with a last line that names it."""
    done = execute([str(command), *words.split()], folder)
    last = done.stdout.strip().splitlines()[-1:]
    fine = done.returncode in (1, 2) and f"pip install 'atropos-rl[{extra}]'" in "".join(last)
    if not fine or "Traceback" in done.stdout:
        raise Failed(f"atropos {words}: exit status {done.returncode}\n{done.stdout[-2000:]}")
    print(f"check_wheel: {last[0]}", flush=True)


def commands(python: str, folder: Path) -> list[str]:
    """Console commands of the installed distribution."""
    code = (
        "from importlib.metadata import distribution as d; "
        "print(*[p.name for p in d('atropos-rl').entry_points if p.group == 'console_scripts'])"
    )
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True)
    names = done.stdout.split()
    if not names:
        raise Failed(f"no console commands: {done.stderr[-500:]}")
    return names


def run(
    title: str, command: Sequence[str], folder: Path, env: dict[str, str] | None = None
) -> float:
    """Run a command in ``folder``; returns its CPU seconds.

    Raises:
        Failed: its exit status is not 0.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = execute(command, folder, env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode != 0:
        raise Failed(f"{title}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    elapsed_s = time.monotonic() - started
    print(f"check_wheel: {title}: {elapsed_s:.1f} s, {cpu_s:.2f} s of CPU", flush=True)
    return cpu_s


def execute(
    command: Sequence[str], folder: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` without PYTHONPATH; its errors are part of its output."""
    env = {key: value for key, value in (env or os.environ).items() if key != "PYTHONPATH"}
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        timeout=WAIT_S,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


if __name__ == "__main__":
    sys.exit(main())
