"""Figures as text for a terminal and as the generated part of a page. Pure."""

from __future__ import annotations

import textwrap

from apibench.figures import Better, Figure, Results, Section, Target, Verdict

BEGIN = "<!-- written by bench_api.py from results_api.json: do not edit -->"
END = "<!-- end of what bench_api.py wrote -->"
COLUMNS = 100  # width of prose
_HEAD = ("what", "unit", "ours", "naive", "machine", "ratio (pairs)", "target", "")


def cell_text(value: float | None) -> str:
    """Three significant digits. Example: 0.01234 -> 0.0123, 1234.5 -> 1,234."""
    if value is None:
        return ""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def target_text(target: Target | None) -> str:
    if target is None:
        return ""
    times = "" if target.on_value else "x"
    parts = []
    if target.at_least is not None:
        parts.append(f">= {cell_text(target.at_least)}{times}")
    if target.at_most is not None:
        parts.append(f"<= {cell_text(target.at_most)}{times}")
    return ", ".join(parts)


def cells(figure: Figure) -> tuple[str, ...]:
    ratio = f"{cell_text(figure.ratio)}x" if figure.ratio is not None else ""
    if figure.spread is not None and len(figure.ours) > 1 and len(figure.naive) > 1:
        ratio += f" ({cell_text(figure.spread[0])}-{cell_text(figure.spread[1])})"
    return (
        figure.what,
        figure.unit + (", more is better" if figure.better is Better.MORE else ""),
        cell_text(figure.best(figure.ours)),
        cell_text(figure.best(figure.naive)),
        cell_text(figure.best(figure.limit)),
        ratio,
        target_text(figure.target),
        figure.verdict.value,
    )


def table(section: Section) -> str:
    """A Markdown table without its empty columns."""
    rows = [_HEAD, *(cells(figure) for figure in section.figures)]
    used = [i for i in range(len(_HEAD)) if any(row[i] for row in rows[1:])]
    lines = ["| " + " | ".join(row[i] for i in used) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(used))
    return "\n".join(lines)


def summary(results: Results) -> str:
    """Line with the number of targets met, and the names of missed targets."""
    judged = [f for s in results.sections for f in s.figures if f.target is not None]
    missed = [figure.what for figure in judged if figure.verdict is Verdict.MISSED]
    line = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return line + (f"; missed: {'; '.join(missed)}" if missed else "") + "."


def page(results: Results) -> str:
    """All sections, below a line with the machine and its load average."""
    before, after = results.load
    first = (
        f"{results.taken}, plan `{results.plan}`. {results.machine}. Load average "
        f"{before:.1f} before, {after:.1f} after. {summary(results)}"
    )
    parts = [textwrap.fill(first, COLUMNS, break_on_hyphens=False)]
    for section in results.sections:
        method = textwrap.fill(section.method, COLUMNS, break_on_hyphens=False)
        parts += [f"### {section.title}", method, table(section)]
    return "\n\n".join(parts)


def with_page(readme: str, written: str) -> str:
    """``readme`` with everything between the two marks replaced.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"the page needs one line {BEGIN!r} and one line {END!r}")
    head, rest = readme.split(BEGIN)
    if END not in rest:
        raise ValueError("the end mark stands before the begin mark")
    return f"{head}{BEGIN}\n\n{written}\n\n{END}{rest.split(END)[1]}"
