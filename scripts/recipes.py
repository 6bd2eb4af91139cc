"""Run a recipe of docs/recipes/ with several seeds, and record seconds and held-out figures.

    python scripts/recipes.py calculator --seeds 0 1 2 [--started]

The commands stand in the comment at the head of the recipe: the start commands run once (not with
``--started``), then the run goes with each seed, into runs/NAME/seed-S. docs/recipes/NAME.json is
written after each seed, and the gallery shows it. See ``read_recipe`` for the form of the comment.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs/recipes"
COMMAND = "$ "


@dataclass(frozen=True)
class RecipeText:
    """Parts of the comment at the head of a recipe."""

    name: str
    about: str
    held_out: str  # name of the figure: eval/ENVIRONMENT/METRIC
    meaning: str  # the figure in words
    start: tuple[str, ...]  # commands
    run: str
    on_gpu: str  # the command with what to change for one GPU


def read_recipe(path: Path) -> RecipeText:
    """Read the head of a recipe.

        # What is learned, by which model.
        #
        # Held out: METRIC, what it means.
        #
        # Start, once: words.
        #   $ command
        # Run:
        #   $ atropos run local docs/recipes/NAME.yaml seed=0
        # On one GPU: words.
        #   $ atropos run local docs/recipes/NAME.yaml model_name=...

    Raises:
        ValueError: a part lacks; the error names the file and the part.
    """
    text = path.read_text(encoding="utf-8")
    lines = [line[1:].strip() for line in text.split("\nname:")[0].splitlines()]
    parts: dict[str, list[str]] = {"about": []}
    part = "about"
    for line in lines:
        title = next((t for t in TITLES if line.startswith(t)), None)
        if title is not None:
            part, line = title, line.removeprefix(title).strip()
        parts.setdefault(part, []).append(line)
    for title in (*TITLES, "about"):
        if title not in parts:
            raise ValueError(f"{path.name}: its comment has no part {title!r}")
    commands = {title: commands_of(parts[title]) for title in (START, RUN, ON_GPU)}
    for title in (RUN, ON_GPU):
        if len(commands[title]) != 1:
            raise ValueError(f"{path.name}: one command belongs to {title!r}")
    metric, _, meaning = sentence(parts[HELD_OUT]).partition(", ")
    [environment] = yaml.safe_load(text)["trainer"]["settings"]["evaluation"]["environments"]
    return RecipeText(
        name=path.stem,
        about=sentence(parts["about"]),
        held_out=f"eval/{environment}/{metric}",
        meaning=meaning,
        start=tuple(commands[START]),
        run=commands[RUN][0],
        on_gpu=commands[ON_GPU][0],
    )


HELD_OUT, START, RUN, ON_GPU = "Held out:", "Start, once:", "Run:", "On one GPU:"
TITLES = (HELD_OUT, START, RUN, ON_GPU)


def sentence(lines: list[str]) -> str:
    return " ".join(line for line in lines if line)


def commands_of(lines: list[str]) -> list[str]:
    """Commands of a part; a line that ends with a backslash goes on in the next."""
    joined = "\n".join(lines).replace("\\\n", " ")
    return [line[len(COMMAND) :] for line in joined.split("\n") if line.startswith(COMMAND)]


def run_command(command: str, log: Path) -> float:
    """Run a command of a recipe without a shell; ``> FILE`` at its end is followed.

    Returns its seconds. Raises SystemExit with its status and the place of its log.
    """
    words = shlex.split(command)
    target = None
    if len(words) > 2 and words[-2] == ">":
        words, target = words[:-2], ROOT / words[-1]
        target.parent.mkdir(parents=True, exist_ok=True)
    programs = Path(sys.executable).parent
    words[0] = str(programs / words[0])
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("ab") as lines, (target or log).open("wb" if target else "ab") as out:
        status = subprocess.run(words, cwd=ROOT, stdout=out, stderr=lines).returncode
    if status:
        raise SystemExit(f"{command}\nended with status {status}; see {log}")
    return time.monotonic() - began


def run_figures(folder: Path, held_out: str) -> dict[str, Any]:
    """Rewards of the steps, and each held-out figure with its step and standard error."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        "reward": [round(row["reward_mean"], 3) for row in rows if "reward_mean" in row],
        "held_out": list(held_out_figures(rows, held_out)),
    }


def held_out_figures(rows: list[dict[str, Any]], held_out: str) -> Iterator[list[float]]:
    """Step, figure and standard error of each evaluation."""
    run, _, metric = held_out.rpartition("/")
    for row in rows:
        if (value := row.get(held_out)) is not None:
            error = row.get(f"{run}/stderr/{metric}") or 0.0
            # A result behind the last step has a line without a step.
            step = row["evaluated_step"] if "evaluated_step" in row else row["step"]
            yield [step, round(value, 3), round(error, 3)]


def processors() -> str:
    """Processors of this process, with the name of their model where the system has it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{len(os.sched_getaffinity(0))} x {line.partition(':')[2].strip()}"
    return f"{os.cpu_count()} processors"


def record(name: str, changes: dict[str, Any], seeds: dict[str, Any]) -> None:
    """Add figures to docs/recipes/NAME.json."""
    path = RECIPES / f"{name}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"seeds": {}}
    figures = {**kept, **changes, "seeds": dict(sorted({**kept["seeds"], **seeds}.items()))}
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="a file of docs/recipes/, without .yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--started", action="store_true", help="the start commands were run")
    options = parser.parse_args()
    recipe = read_recipe(RECIPES / f"{options.name}.yaml")
    log = ROOT / "runs" / recipe.name / "recipe.log"
    if not options.started:
        start_s = sum(run_command(command, log) for command in recipe.start)
        record(recipe.name, {"start_s": round(start_s)}, {})
    for seed in options.seeds:
        folder = Path("runs") / recipe.name / f"seed-{seed}"
        command = recipe.run.replace("seed=0", f"seed={seed}")
        seconds = run_command(f"{command} out={folder}", log)
        figures = {"seconds": round(seconds), **run_figures(ROOT / folder, recipe.held_out)}
        record(recipe.name, {"machine": processors()}, {str(seed): figures})
        print(f"seed {seed}: {figures['seconds']} s, held out {figures['held_out']}")


if __name__ == "__main__":
    main()
