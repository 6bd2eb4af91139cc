"""Rollout files of other trainers as groups of the page: formats, and the files of a dump.

    file or folder --first record--> Format --records--> samples --> groups of a file of this package

A part that a format does not have stays empty and is listed by name. Nothing is guessed: a decoded
prompt is a single message, and tokens without known roles are no messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.frontend.dumps import atif, nemo, prime_rl, slime, verl
from atroposlib.frontend.dumps.samples import DumpSample, Record, dump_groups, missing_parts

MAX_FILES = 10_000
_TORCH = ".pt"
_SUFFIXES = (".jsonl", ".json", _TORCH)
_STEP = re.compile(r"step[_-]?(\d+)$")


@dataclass(frozen=True)
class Format:
    """A format: its name, whether a record has it, and the sample of a record.

    ``step`` is that in the name of a file or its folder; None: there is none.
    """

    name: str
    matches: Callable[[Record], bool]
    sample: Callable[[Record, int | None], DumpSample]


# The first format that matches a record has it.
FORMATS = (
    Format("ATIF trajectory", atif.is_trajectory, atif.trajectory_sample),
    Format("NeMo Gym rollouts", nemo.is_gym, nemo.gym_sample),
    Format("NeMo RL training data", nemo.is_training_data, nemo.training_sample),
    Format("prime-rl traces", prime_rl.is_trace, prime_rl.trace_sample),
    Format("prime-rl rollouts", prime_rl.is_rollout, prime_rl.rollout_sample),
    Format("slime or miles rollouts", slime.is_slime_sample, slime.slime_sample),
    Format("verl generations", verl.is_generation, verl.generation_sample),
)


@dataclass(frozen=True)
class Dump:
    """Groups of a dump, and the names of parts that none of its samples has."""

    format: str
    groups: list[dict[str, Any]]
    missing: list[str]


def read_dump(path: Path) -> Dump | None:
    """The dump of a file or folder; None: it has none of the formats.

    Raises ConfigError: a file of the dump cannot be read, or its records differ in format.
    """
    files = dump_files(path)
    if not files:
        return None
    records = records_of(files[0])
    try:
        first = next(records, None)
    except ConfigError:
        raise
    except ValueError:  # no JSON: no dump
        return None
    kind = next((kind for kind in FORMATS if first is not None and kind.matches(first)), None)
    if kind is None or first is None:
        return None
    samples: list[DumpSample] = []
    groups: list[dict[str, Any]] = []
    for file in files:
        own = chain([first], records) if file == files[0] else records_of(file)
        part = list(_samples(kind, own, file))
        samples += part
        groups += dump_groups(part)
    return Dump(kind.name, groups, missing_parts(samples))


def _samples(kind: Format, records: Iterator[Record], file: Path) -> Iterator[DumpSample]:
    step = step_of(file)
    for number in count(1):
        try:
            record = next(records, None)
            if record is None:
                return
            sample = kind.sample(record, step)
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as cause:
            problem = f"{type(cause).__name__}: {cause}"
            raise ConfigError(
                f"{file} record {number} has not the form of {kind.name} ({problem})"
            ) from cause
        yield sample


def dump_files(path: Path) -> list[Path]:
    """The file, or the files below a folder by the numbers in their names."""
    if path.is_file():
        return [path] if path.suffix in _SUFFIXES else []
    if not path.is_dir():
        return []
    files = (file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    return sorted(files, key=_natural)[:MAX_FILES]


def _natural(path: Path) -> list[tuple[int, int, str]]:
    words = re.split(r"(\d+)", str(path))
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in words]


def step_of(file: Path) -> int | None:
    """The step at the end of the name of a file, else of its folder: ``step_12``."""
    numbers = (_STEP.search(name) for name in (file.stem, file.parent.name))
    return next((int(number[1]) for number in numbers if number), None)


def records_of(file: Path) -> Iterator[Record]:
    """The records of a file: lines, a JSON document, or the samples of a torch file.

    Raises:
        ValueError: no JSON, or a record that is no mapping.
        ConfigError: a torch file that holds more than plain values.
    """
    if file.suffix == _TORCH:
        yield from _torch_samples(file)
        return
    with file.open(encoding="utf-8") as lines:
        documents: Iterable[Any] = (json.loads(line) for line in lines if line.strip())
        if file.suffix == ".json":
            document = json.load(lines)
            documents = document if isinstance(document, list) else [document]
        for record in documents:
            if not isinstance(record, Mapping):
                raise ValueError("a record is a JSON object")
            yield record


def _torch_samples(file: Path) -> list[Record]:
    try:
        torch = import_module("torch")
    except ModuleNotFoundError as cause:
        raise ConfigError(f"{file}: a .pt file needs torch: pip install torch") from cause
    try:
        # Plain values and tensors only: a file cannot run code.
        data = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as cause:
        raise ConfigError(
            f"{file} holds objects beyond plain values, which are not loaded because they may run"
            " code: save its samples as JSON lines (json.dumps(sample.to_dict()))"
        ) from cause
    samples = data.get("samples") if isinstance(data, dict) else data
    if not isinstance(samples, list):
        raise ConfigError(f"{file} has no list of samples")
    step = data.get("rollout_id") if isinstance(data, dict) else None
    return [{"rollout_id": step, **sample} for sample in samples]
