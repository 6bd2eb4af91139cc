"""Comparison of two runs as text for a terminal, and as a self-contained file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from atroposlib.run_status.view import clock
from atroposlib.ui.export import Kept, exported_page
from atroposlib.utils.command import logs
from atroposlib.workbench.paired import comparison_lines

SETTINGS_SHOWN = 6  # lines of each part on the terminal; the file and --json have all
FIGURES_SHOWN = 6
TASKS_SHOWN = 2
UNKNOWN = "unknown"
SAME_WORDS = {True: "same", False: "differs", None: UNKNOWN}
Block = dict[str, Any]
CURVES_ABOUT = (
    "A is drawn first, B over it. Left by step; right by tokens: both at the same number of "
    "sampled tokens, which is what sampling costs."
)
AXIS_WORDS = {"step": "by step", "tokens": "by sampled tokens"}


def terminal_parts(diff: Mapping[str, Any]) -> list[Table | Text]:
    """The comparison for 80 columns and 24 lines, parts of which are cut."""
    head = Table.grid(padding=(0, 1))
    head.add_row("", *map(text_of, ("run", "state", "steps", "tokens", "time")), style="dim")
    for side in ("A", "B"):
        facts = diff[side.lower()]
        cells = (facts["name"], facts["state"], facts["steps"], short_count(facts["tokens"]))
        head.add_row(side, *map(text_of, cells), clock(facts["seconds"]))
    parts: list[Table | Text] = [head]
    parts += _settings_parts(diff)
    parts.append(Text(code_line(diff), no_wrap=False))
    parts += _figures_parts(diff)
    parts += [Text(line) for line in task_lines(diff, TASKS_SHOWN)]
    return parts


def _settings_parts(diff: Mapping[str, Any]) -> list[Table | Text]:
    settings = diff["settings"]
    if not all(diff["settings_known"]):
        return [Text("settings: a run has none on record (launch/*.yaml)")]
    if not settings:
        return [Text("settings: all equal")]
    table = Table.grid(padding=(0, 1))
    for setting in settings[:SETTINGS_SHOWN]:
        place = setting["place_b"] or setting["place_a"]
        table.add_row(
            text_of(setting["name"]),
            text_of(setting["a"]),
            "->",
            text_of(setting["b"]),
            Text(logs.printable(place), "dim"),
        )
    more = len(settings) - SETTINGS_SHOWN
    title = f"settings that differ: {len(settings)}"
    return [Text(title + (f", {SETTINGS_SHOWN} shown" if more > 0 else ""), "bold"), table]


def code_line(diff: Mapping[str, Any]) -> str:
    """A line about the code: which parts differ."""
    words = []
    for part in diff["code"]:
        if part["same"] is None:
            sides = [side for side in ("A", "B") if not part[side.lower()]]
            words.append(f"{part['name']} {UNKNOWN} for {' and '.join(sides)}")
        elif part["same"]:
            words.append(f"{part['name']} same ({short_digest(part['a'])})")
        else:
            pair = f"{short_digest(part['a'])} -> {short_digest(part['b'])}"
            words.append(f"{part['name']} differs ({pair})")
    return logs.printable(f"code: {', '.join(words)}")


def _figures_parts(diff: Mapping[str, Any]) -> list[Table | Text]:
    table = Table.grid(padding=(0, 2))
    at = {axis: first_place(diff["figures"], axis) for axis in ("step", "tokens")}
    heads = ["last", f"step {at['step']:g}", f"{short_count(at['tokens'])} tok"]
    titles = [Text(word, "dim") for head in heads for word in (f"A {head}", "B")]
    table.add_row("", *titles)
    for figures in diff["figures"][:FIGURES_SHOWN]:
        pairs = [figures["last"], *(pair_at(figures[axis]) for axis in ("step", "tokens"))]
        cells = (Text(figure_text(value)) for pair in pairs for value in pair)
        table.add_row(text_of(figures["key"]), *cells)
    return [table] if diff["figures"] else [Text("curves: no step was trained in either")]


def first_place(figures: Iterable[Mapping[str, Any]], axis: str) -> float:
    """The end of the first curve that both runs have."""
    return next((line[axis]["at"] for line in figures if line[axis]), 0.0)


def pair_at(equal: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
    return (None, None) if equal is None else (equal["a"], equal["b"])


def task_lines(diff: Mapping[str, Any], shown: int) -> list[str]:
    """The paired tasks as text."""
    tasks = diff["tasks"]
    if tasks is None:
        return [logs.printable(f"tasks: {diff['tasks_missing']}")]
    about = tasks["about_a"]
    if tasks["about_b"] != about:
        about = f"A {about}, B {tasks['about_b']}"
    unpaired = tasks["unpaired_a"] + tasks["unpaired_b"]
    left = f"; {unpaired} tasks of one run only are left out" if unpaired else ""
    lines = comparison_lines(tasks, shown, tasks["length_unit"], with_places=False)
    return [f"{about}{left}", *lines]


# --- one file -----------------------------------------------------------------------------


def diff_file(diff: Mapping[str, Any]) -> bytes:
    """The comparison as a page that needs no server."""
    kept = Kept()
    name = f"{diff['a']['name']} and {diff['b']['name']}"
    kept.put({"runs": {"runs": [{"run_id": "run diff", "path": name}]}})
    data = kept.page_data("", "", blocks=diff_blocks(diff), views=[""])
    return exported_page({**data, "note": name})


def diff_blocks(diff: Mapping[str, Any]) -> list[Block]:
    """The comparison as blocks of the page."""
    sides = [("A", diff["a"]), ("B", diff["b"])]
    rows = [
        [
            side,
            facts["name"],
            f"{facts['state']}: {facts['line']}",
            str(facts["steps"]),
            short_count(facts["tokens"]),
            clock(facts["seconds"]),
        ]
        for side, facts in sides
    ]
    head = ["", "run", "state", "steps", "sampled tokens", "time"]
    return [
        {"kind": "title", "text": f"{diff['a']['name']} → {diff['b']['name']}"},
        {"kind": "table", "head": head, "rows": rows},
        {"kind": "head", "text": "Settings that differ"},
        *_setting_blocks(diff),
        {"kind": "head", "text": "Code"},
        {
            "kind": "table",
            "head": ["part", "A", "B", ""],
            "rows": [
                [
                    part["name"],
                    part["a"] or UNKNOWN,
                    part["b"] or UNKNOWN,
                    SAME_WORDS[part["same"]],
                ]
                for part in diff["code"]
            ],
        },
        {"kind": "head", "text": "Tasks, paired"},
        *_task_blocks(diff),
        {"kind": "head", "text": "Curves"},
        {"kind": "text", "text": CURVES_ABOUT},
        {"kind": "charts", "charts": list(_charts(diff))},
    ]


def _setting_blocks(diff: Mapping[str, Any]) -> list[Block]:
    if not all(diff["settings_known"]):
        return [{"kind": "text", "text": "A run has no settings on record (launch/*.yaml)."}]
    rows = [
        [s["name"], s["a"], s["b"], s["place_a"] or "–", s["place_b"] or "–"]
        for s in diff["settings"]
    ]
    if not rows:
        return [{"kind": "text", "text": "All settings are equal."}]
    return [
        {"kind": "table", "head": ["setting", "A", "B", "place in A", "in B"], "rows": rows}
    ]


def _task_blocks(diff: Mapping[str, Any]) -> list[Block]:
    tasks = diff["tasks"]
    blocks = [{"kind": "list", "items": [[line] for line in task_lines(diff, 0)]}]
    if tasks is None:
        return blocks
    rows = [
        [f"only {name}", item]
        for name in ("A", "B")
        for _, item in tasks[f"only_{name.lower()}"]
    ]
    return [*blocks, {"kind": "table", "head": ["solved by", "task"], "rows": rows}]


def _charts(diff: Mapping[str, Any]) -> Iterable[Block]:
    for key in diff["curves"]["step"]:
        for axis in ("step", "tokens"):
            series = [
                {"label": label, "points": points, "dots": False}
                for label, points in zip(("A", "B"), diff["curves"][axis][key])
                if points
            ]
            if series:
                yield {"title": key, "about": AXIS_WORDS[axis], "series": series}


# --- forms --------------------------------------------------------------------------------


def text_of(value: object) -> Text:
    return Text(logs.printable(str(value)), overflow="ellipsis")


def figure_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def short_count(n: float) -> str:
    """A count in at most five characters: ``5.6k``, ``120M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"


def short_digest(text: str) -> str:
    """The text with a digest cut to its first 8 characters."""
    head, marker, digest = text.rpartition("sha256:")
    return f"{head}{digest[:8]}" if marker else text
