"""Results of an evaluation: what was measured, at which step and version, how it ended. Pure.

    metrics.json of a program -> read_result -> Measured --.
                                       Evaluation (step, version, seconds) -> metrics(), JSON

    eval/NAME            number of a whole evaluation; of an environment eval/ENV/NAME
    eval_partial/NAME    the same over the tasks done when the time was over
    .../stderr/NAME      its standard error over the tasks, where the program writes it
    .../{items,samples}  how many tasks and answers it is a mean of

A failed evaluation has no number: it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from atroposlib.trackers import finite_numbers

RESULTS = "metrics.json"
PARTIAL_RESULTS = Path("partial") / RESULTS  # written by an environment while it evaluates
SAMPLES = "samples.jsonl"  # a line for each answer
RECORD = "evaluation.json"  # what became of the evaluation, in its directory


class EvaluationOutcome(str, Enum):
    """How an evaluation ended, or the part of it that a program is."""

    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"  # over the tasks done when the time was over
    FAILED = "failed"  # no number
    LOST = "lost"  # the trainer died meanwhile


@dataclass(frozen=True)
class Measured:
    """Result of a program: ``name`` of its environment, empty for ``eval_command``."""

    name: str
    outcome: EvaluationOutcome
    numbers: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)  # standard errors of numbers
    of_tasks: int | None = None  # samples that a whole evaluation has, of partial results
    problem: str | None = None

    def metrics(self) -> dict[str, float]:
        """The numbers under the names of the module; none unless there is a result."""
        kind = {EvaluationOutcome.DONE: "eval", EvaluationOutcome.PARTIAL: "eval_partial"}.get(
            self.outcome
        )
        if kind is None:
            return {}
        prefix = f"{kind}/{self.name}/" if self.name else f"{kind}/"
        named = {f"{prefix}{name}": value for name, value in self.numbers.items()}
        return named | {f"{prefix}stderr/{k}": value for k, value in self.errors.items()}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of the weights of a step."""

    step: int
    version: int
    where: str
    servers: list[str]
    outcome: EvaluationOutcome = EvaluationOutcome.RUNNING
    seconds: float = 0.0
    parts: list[Measured] = field(default_factory=list)
    problem: str | None = None
    is_logged: bool = False

    def with_results(
        self, parts: Sequence[Measured], seconds: float, problem: str | None = None
    ) -> Evaluation:
        """The evaluation with its results; as good as its worst part."""
        outcomes = [part.outcome for part in parts]
        worst = [EvaluationOutcome.FAILED, EvaluationOutcome.PARTIAL, EvaluationOutcome.DONE]
        outcome = next((kind for kind in worst if kind in outcomes), EvaluationOutcome.FAILED)
        return replace(
            self, outcome=outcome, parts=[*parts], seconds=round(seconds, 3), problem=problem
        )

    def with_problem(self, problem: str, seconds: float) -> Evaluation:
        """The evaluation without any number."""
        return replace(
            self,
            outcome=EvaluationOutcome.FAILED,
            parts=[],
            seconds=round(seconds, 3),
            problem=problem,
        )

    def as_lost(self) -> Evaluation:
        """The evaluation of a trainer that died meanwhile."""
        return replace(
            self, outcome=EvaluationOutcome.LOST, problem="the trainer ended meanwhile"
        )

    @property
    def has_failed(self) -> bool:
        return self.outcome in (EvaluationOutcome.FAILED, EvaluationOutcome.LOST)

    def metrics(self) -> dict[str, float]:
        """Numbers of all parts and, if there are any, version and seconds."""
        numbers = {name: n for part in self.parts for name, n in part.metrics().items()}
        if not numbers:
            return {}
        return {**numbers, "eval/version": self.version, "eval/seconds": self.seconds}

    @property
    def why(self) -> str:
        """The problems of the evaluation and its parts."""
        named = [(part.name, part.problem) for part in self.parts]
        problems = [f"{name}: {text}" if name else text for name, text in named if text]
        return "; ".join(([self.problem] if self.problem else []) + problems)

    def line(self) -> str:
        """A line for the log."""
        shown = ", ".join(f"{name} {n:.4g}" for name, n in self.metrics().items())
        end = "; ".join(filter(None, (shown, self.why)))
        return (
            f"evaluation of step {self.step}, version {self.version}: {self.outcome.value} after"
            f" {self.seconds:.1f} s: {end}"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def read_record(path: Path) -> Evaluation | None:
    """The evaluation whose file this is; None for a file that holds none."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        parts = [
            Measured(**{**part, "outcome": EvaluationOutcome(part["outcome"])})
            for part in fields.pop("parts")
        ]
        return Evaluation(
            **{**fields, "outcome": EvaluationOutcome(fields["outcome"])}, parts=parts
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def read_result(name: str, path: Path) -> Measured:
    """Read the result of a program that ended well; failed if the file holds no number.

    A figure that is NaN or infinite is no result, and is named as a problem.
    """
    try:
        document = read_document(path, is_environment=bool(name))
        numbers = evaluation_numbers(document)
        samples = path.with_name(SAMPLES)
        if numbers and name and "items" not in numbers and samples.is_file():
            numbers["items"] = float(samples.read_bytes().count(b"\n"))
    except (OSError, ValueError, RecursionError) as error:
        return Measured(name, EvaluationOutcome.FAILED, problem=str(error))
    unusable = ", ".join(unusable_figures(document))
    problem = f"{path}: {unusable}: NaN or infinite" if unusable else None
    if not numbers:
        return Measured(
            name, EvaluationOutcome.FAILED, problem=problem or f"{path} holds no number"
        )
    return Measured(
        name, EvaluationOutcome.DONE, numbers, errors_of(document), problem=problem
    )


def read_partial(name: str, path: Path, problem: str) -> Measured:
    """Read what a program had done when it was ended; failed if that is nothing."""
    try:
        document = read_document(path, is_environment=True)
        numbers = evaluation_numbers(document)
        of_tasks = int(document["config_general"]["partial_of"])
        has_items = bool(numbers.get("items"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        has_items = False
    if not has_items:
        return Measured(
            name, EvaluationOutcome.FAILED, problem=f"{problem}, without partial results"
        )
    return Measured(
        name, EvaluationOutcome.PARTIAL, numbers, errors_of(document), of_tasks, problem
    )


def read_document(path: Path, is_environment: bool = False) -> dict[str, Any]:
    """Read a metrics file; of an environment only the results of all its tasks together.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON object.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError(f"{path} is no JSON object")
    results = document.get("results")
    together = results.get("all") if isinstance(results, dict) else None
    return (
        {**document, "results": {"all": together}} if is_environment and together else document
    )


def evaluation_numbers(document: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a metrics file; nested names are joined by /.

    Of a file in the format of the environments (``{"results": {"atropos|task|0": ..., "all":
    ...}}``) only the results are read; results of all tasks together get no prefix.
    """
    return finite_numbers(dict(_figures(results_in(document), "")))


def unusable_figures(document: Mapping[str, Any]) -> list[str]:
    """Names of figures of a metrics file that are NaN or infinite."""
    figures = dict(_figures(results_in(document), ""))
    return sorted(figures.keys() - finite_numbers(figures).keys())


def results_in(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The results of a metrics file: of an environment the results of all tasks, without a prefix."""
    results = document.get("results")
    if not isinstance(results, dict):
        return document
    together = results.get("all")
    return {**results, **together, "all": None} if isinstance(together, dict) else results


def errors_of(document: Mapping[str, Any]) -> dict[str, float]:
    """The standard errors in a file of an environment."""
    errors = document.get("standard_errors")
    return finite_numbers(dict(_figures(errors, ""))) if isinstance(errors, dict) else {}


def _figures(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, int | float]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _figures(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
