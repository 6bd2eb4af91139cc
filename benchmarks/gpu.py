"""Checks and figures of trainer, publishers and local server on a CUDA device.

    make gpu                                        all checks, 9 minutes at most
    python benchmarks/gpu.py --device cpu           a dry run with tiny shapes
    python benchmarks/gpu.py --only arithmetic,nccl --out figures
    make gpu ONLY="long rows"                       the shapes that prime-rl publishes

Every check is a process with a bound in time; after a failed check the rest go on. Nothing is
downloaded: weights are random and tokenizers generated. ``gpu.md``, ``gpu.json`` and ``gpu.log``
are written to ``--out``. The exit status is 0 if every check that can run here holds; a check
that cannot run is listed with the reason. ``--docs`` puts the page into docs/gpu.md.

MFU is the work of the rows without padding (trainerbench/workload.py, ``useful_flops``) over the
time and the device's peak, which is that of an 8192^3 bfloat16 product in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuchecks.figures import Place

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- figures: written by benchmarks/gpu.py -->", "<!-- end of figures -->"
RESULT = "result: "


@dataclass(frozen=True)
class Check:
    """A named check: ``function`` of gpuchecks, its bound, and why a dry run leaves it out."""

    name: str
    function: str
    bound_s: float
    not_dry: str = ""
    size: str = "135m"  # shape of the model; see trainerbench/workload.py
    group: str = "truth"  # also taken by --only; on a GPU without --only, APART is left out


SPEED, APART = "speed", "long rows"  # all but APART fill the time of a command
SAME_CODE = "tiny shapes: the code of the smaller size"
CHECKS = (
    Check("arithmetic", "arithmetic.arithmetic", 90),
    Check("rounding", "rounding.rounding", 60),
    Check("optimizer offload", "moments.compare_places", 45),
    Check("publish", "publishing.publish", 75),
    Check("cuda ipc", "publishing.cuda_ipc", 60, "CUDA IPC needs CUDA"),
    Check("nccl", "publishing.nccl", 45, "NCCL needs CUDA"),
    Check("run that learns", "runs.learns", 150),
    Check("kill and resume", "runs.killed", 150),
    Check("step 0.5b", "speed.step", 110, size="0.5b", group=SPEED),
    Check("generate 135m", "speed.generate", 60, group=SPEED),
    Check("step 1.5b", "speed.step", 150, SAME_CODE, "1.5b", SPEED),
    Check("generate 0.5b", "speed.generate", 75, SAME_CODE, "0.5b", SPEED),
    Check("long rows 0.6b", "longrows.full", 120, size="0.6b", group=APART),
    Check("long rows 4b lora", "longrows.adapter", 300, size="4b", group=APART),
)


@dataclass
class Outcome:
    """Outcome of a check: passed, failed or left out, with its figures."""

    name: str
    verdict: str
    seconds: float
    reason: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)


def main() -> int:
    options = parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path.rstrip(os.pathsep)
    if options.device == "cpu":
        os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if options.run:
        return run_here(options)
    options.device = device_of(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.log").unlink(missing_ok=True)
    chosen = chosen_checks(options.only, options.device)
    began, outcomes = time.monotonic(), []
    patience = Place(options.device, options.out).patience
    with tempfile.TemporaryDirectory(prefix="atropos-gpu-") as scratch:
        install(options.wheels, Path(scratch) / "site")
        for check in chosen:
            left_s = options.within * patience - (time.monotonic() - began)
            outcome = in_own_process(check, options, Path(scratch), left_s)
            outcomes.append(outcome)
            print(
                f"{outcome.name}: {outcome.verdict}, {outcome.seconds:.0f} s {outcome.reason}"
            )
            write(options, outcomes, time.monotonic() - began)
    return int(any(outcome.verdict == "failed" for outcome in outcomes) or not outcomes)


def chosen_checks(only: str | None, device: str) -> list[Check]:
    """Checks that ``only`` lists by name or group; without it, checks that fit into a command.

    Raises:
        SystemExit: a name is neither a check nor a group.
    """
    if not only:
        return [check for check in CHECKS if device == "cpu" or check.group != APART]
    names = {name.strip() for name in only.split(",")}
    unknown = names - {check.name for check in CHECKS} - {check.group for check in CHECKS}
    if unknown:
        known = ", ".join(dict.fromkeys([c.group for c in CHECKS] + [c.name for c in CHECKS]))
        raise SystemExit(f"gpu.py: no check is called {sorted(unknown)}; there are {known}")
    return [check for check in CHECKS if names & {check.name, check.group}]


def in_own_process(
    check: Check, options: argparse.Namespace, scratch: Path, left_s: float
) -> Outcome:
    """Run a check, at most as long as its bound and the time of the whole allow."""
    command = [sys.executable, __file__, "--run", check.name, "--device", options.device]
    command += ["--scratch", str(scratch)]
    began = time.monotonic()
    if options.device == "cpu" and check.not_dry:
        return Outcome(check.name, "left out", 0.0, check.not_dry)
    if left_s <= 0:
        return Outcome(check.name, "failed", 0.0, "no time was left")
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    bound_s = min(check.bound_s * Place(options.device, scratch).patience, left_s)
    try:
        output, _ = child.communicate(timeout=bound_s)
        late = False
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, late = child.communicate()[0], True
    with (options.out / "gpu.log").open("a", encoding="utf-8") as log:
        log.write(f"=== {check.name}\n{output}\n")
    seconds = time.monotonic() - began
    lines = output.strip().splitlines() or ["no output"]
    if late:
        return Outcome(check.name, "failed", seconds, f"not done within {bound_s:.0f} s")
    if not lines[-1].startswith(RESULT):
        return Outcome(
            check.name, "failed", seconds, f"status {child.returncode}: {lines[-1]}"
        )
    result = json.loads(lines[-1].removeprefix(RESULT))
    return Outcome(check.name, seconds=seconds, **result)


def run_here(options: argparse.Namespace) -> int:
    """Run a check in this process; its outcome is the last line of the output."""
    check = next(check for check in CHECKS if check.name == options.run)
    module, _, function = check.function.partition(".")
    call = getattr(import_module(f"gpuchecks.{module}"), function)
    figures = call(Place(options.device, options.scratch, check.size))
    wrong = [figure.what for figure in figures if not figure.ok]
    document: dict[str, Any] = {
        "verdict": "failed" if wrong else "passed",
        "reason": "; ".join(wrong),
    }
    document["figures"] = [asdict(figure) for figure in figures]
    print(RESULT + json.dumps(document), flush=True)
    # Threads of a server or of NCCL must not keep a finished check alive.
    os._exit(0)


def install(wheels: Path, site: Path) -> None:
    """Make the wheels of scripts/gpu_wheels.py importable by the checks, where they are."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--no-compile", "--target", str(site), *files], check=True)
    os.environ["PYTHONPATH"] += f"{os.pathsep}{site}"
    sys.path.append(str(site))  # the page lists versions


def device_of(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SystemExit("gpu.py: torch sees no CUDA device; --device cpu is a dry run")
    return name


def write(options: argparse.Namespace, outcomes: list[Outcome], seconds: float) -> None:
    """Write the page and the figures after every check: a later kill leaves what is known."""
    about = machine(options.device) | {"seconds": round(seconds)}
    document = {"machine": about, "checks": [asdict(outcome) for outcome in outcomes]}
    (options.out / "gpu.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    text = page(about, outcomes)
    (options.out / "gpu.md").write_text(text, encoding="utf-8")
    if options.docs:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def machine(device: str) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {os.cpu_count()} cores"
    facts = {"device": name, "python": platform.python_version()}
    for package in ("torch", "transformers", "trl"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts | {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d")}


def page(about: dict[str, Any], outcomes: list[Outcome]) -> str:
    """The figures as Markdown. Pure."""
    lines = [", ".join(f"{name} {value}" for name, value in about.items()) + ".", ""]
    lines += ["| check | verdict | s | |", "| --- | --- | --- | --- |"]
    lines += [f"| {o.name} | {o.verdict} | {o.seconds:.0f} | {o.reason} |" for o in outcomes]
    for outcome in outcomes:
        if outcome.figures:
            lines += ["", f"**{outcome.name}**", ""]
            lines += ["| figure | value | bound or reference | |", "| --- | --- | --- | --- |"]
            for figure in outcome.figures:
                mark = "" if figure["ok"] else "**no**"
                what, value, bound = figure["what"], figure["value"], figure["bound"]
                lines.append(f"| {what} | {value} | {bound} | {mark} |")
    return "\n".join(lines) + "\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--device", default="auto", choices=("auto", "cuda", "cpu"))
    add("--out", type=Path, default=ROOT / "runs" / "gpu", help="folder of page, JSON and log")
    add("--only", help=f"truth, speed, long rows, or: {', '.join(c.name for c in CHECKS)}")
    add("--within", type=float, default=530.0, help="seconds for all checks; dry: 4 times it")
    add("--docs", action="store_true", help="put the page into docs/gpu.md too")
    add("--wheels", type=Path, default=ROOT / ".wheels", help="of scripts/gpu_wheels.py")
    add("--run", help=argparse.SUPPRESS)
    add("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
