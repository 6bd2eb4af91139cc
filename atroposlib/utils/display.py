"""Evaluation results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

HIGHER_IS_BETTER = ("correct", "acc", "exact", "score")


def metrics_table(task_name: str, metrics: Mapping[str, float]) -> str:
    """A markdown table of ``metrics``, one row each, in the columns lm-eval uses."""
    header = "|Groups|Version|Filter|n-shot|Metric| |Value| |Stderr|"
    rows = [header, "|" + "---|" * 9]
    for i, (name, value) in enumerate(metrics.items()):
        shown = name.removeprefix("eval/").replace("_", " ")
        arrow = "↑" if any(word in name for word in HIGHER_IS_BETTER) else ""
        group = task_name if i == 0 else ""
        version = "1" if i == 0 else ""
        rows.append(f"|{group}|{version}|none| |{shown}|{arrow}|{value:.4f}|±|0.0000|")
    return "\n".join(rows)


def display_metrics_table(
    task_name: str, metrics: Mapping[str, float], start_time: float, end_time: float
) -> None:
    """Print the table, then how long the evaluation took, in seconds."""
    if metrics:
        print(metrics_table(task_name, metrics))
    else:
        print(f"{task_name}: no numeric metrics")
    print(f"evaluated in {end_time - start_time:.1f} s")
