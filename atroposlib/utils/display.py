"""Evaluation results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HIGHER_IS_BETTER = ("correct", "acc")


def metrics_table(task_name: str, metrics: Mapping[str, Any]) -> str:
    """A markdown table of ``metrics``, one row each, in the columns lm-eval uses.

    Other values are shown as text.
    """
    header = "|Groups|Version|Filter|n-shot|Metric| |Value| |Stderr|"
    rows = [header, "|" + "---|" * 9]
    for i, (name, value) in enumerate(metrics.items()):
        shown = name.removeprefix("eval/").replace("_", " ")
        arrow = "↑" if any(word in name for word in HIGHER_IS_BETTER) else ""
        group = task_name if i == 0 else ""
        version = "1" if i == 0 else ""
        rows.append(f"|{group}|{version}|none| |{shown}|{arrow}|{_shown(value)}|±|0.0000|")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    try:
        return f"{float(value):.4f}"
    except (TypeError, ValueError):
        return str(value)


def display_metrics_table(
    task_name: str, metrics: Mapping[str, Any], start_time: float, end_time: float
) -> None:
    """Print the table, then how long the evaluation took, in seconds."""
    print(metrics_table(task_name, metrics) if metrics else f"{task_name}: no metrics")
    print(f"evaluated in {end_time - start_time:.1f} s")
