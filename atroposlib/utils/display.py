"""Evaluation results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIGHER_IS_BETTER = ("correct", "acc")


def metrics_table(
    task_name: str, metrics: Mapping[str, Any], stderr: Mapping[str, float] | None = None
) -> str:
    """A markdown table of ``metrics``, a row each, in the columns of lm-eval.

    Metrics without a standard error have an empty column; values that are no numbers are shown
    as text.
    """
    header = "|Groups|Version|Filter|n-shot|Metric| |Value| |Stderr|"
    errors = stderr or {}
    rows = [header, "|" + "---|" * 9]
    for i, (name, value) in enumerate(metrics.items()):
        shown = name.removeprefix("eval/").replace("_", " ")
        error = f"±|{errors[name]:.4f}" if name in errors else "|"
        arrow = "↑" if any(word in name for word in HIGHER_IS_BETTER) else ""
        group = task_name if i == 0 else ""
        version = "1" if i == 0 else ""
        rows.append(f"|{group}|{version}|none| |{shown}|{arrow}|{_cell_text(value)}|{error}|")
    return "\n".join(rows)


def _cell_text(value: Any) -> str:
    try:
        return f"{float(value):.4f}"
    except (TypeError, ValueError):
        return str(value)


def display_metrics_table(
    task_name: str,
    metrics: Mapping[str, Any],
    start_time: float,
    end_time: float,
    stderr: Mapping[str, float] | None = None,
) -> None:
    """Print the table, then how long the evaluation took, in seconds."""
    print(metrics_table(task_name, metrics, stderr) if metrics else f"{task_name}: no metrics")
    print(f"evaluated in {end_time - start_time:.1f} s")
