"""Comparison of old and new rewards as lines of a terminal, and as a page in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.frontend.page_groups import group_facts, group_replies
from atroposlib.text.lines import aligned_lines
from atroposlib.travel.comparison import Comparison, Figures, Rescored, rows_by
from atroposlib.ui.export import Kept, exported_page
from atroposlib.utils.command.logs import printable

NOTHING = "-"
MOST_LINES = 40  # steps in the terminal; the page and the file have all
HEAD = (
    "rollouts",
    "old",
    "new",
    "correlation",
    "pairs reordered",
    "sign changes",
    "gain spread",
    "lose spread",
)


def number_text(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def share_text(part: int, whole: int) -> str:
    """``12 of 80 (15%)``; a dash where nothing is compared."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else NOTHING


def cells(figures: Figures) -> list[str]:
    """The cells of a row below ``HEAD``."""
    return [
        f"{figures.n}",
        f"{number_text(figures.old_mean)} +- {number_text(figures.old_std)}",
        f"{number_text(figures.new_mean)} +- {number_text(figures.new_std)}",
        number_text(figures.correlation),
        share_text(figures.pairs_changed, figures.pairs),
        share_text(figures.turned, figures.advantages),
        f"{figures.gain_spread} of {figures.groups}",
        f"{figures.lose_spread} of {figures.groups}",
    ]


def span_text(steps: Sequence[int]) -> str:
    """Steps with runs joined: ``3, 5-8``."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def verdict(comparison: Comparison) -> str:
    """The sentence about steps whose updates turn around."""
    steps = comparison.turned_steps
    if not comparison.total.advantages:
        return "no advantage to compare: no rollout was trained on"
    if not comparison.total.turned:
        return "no advantage changes its sign"
    if not steps:
        return "advantages change sign; the trainer of this run reported no steps"
    return f"advantages change sign in steps {span_text(steps)}"


def report_lines(comparison: Comparison, notes: Sequence[str]) -> list[str]:
    lines = [*notes, ""]
    rows = [("", *HEAD), ("all", *cells(comparison.total))]
    if len(comparison.by_env) > 1:
        rows += [(f"env {env}", *cells(own)) for env, own in comparison.by_env.items()]
    steps = [(f"step {step}", *cells(own)) for step, own in comparison.by_step.items()]
    lines += aligned_lines([*rows, *steps[:MOST_LINES]])
    if len(steps) > MOST_LINES:
        lines.append(f"... {len(steps) - MOST_LINES} more steps in the page")
    lines += ["", verdict(comparison)]
    for kind, count in comparison.failures.most_common():
        text = comparison.failure_texts[kind]
        lines.append(f"{count} rollouts without a new reward, {kind}: {text}".rstrip(": "))
    for row in comparison.largest:
        lines.append(
            f"  group {row.gid} row {row.row}: {number_text(row.old)} -> {number_text(row.new)}"
            f" (step {NOTHING if row.step is None else row.step}, {row.item or 'no item'})"
        )
    return [printable(line) for line in lines]


# --- the page -------------------------------------------------------------------------


def page_blocks(comparison: Comparison, title: str, notes: Sequence[str]) -> list[Any]:
    """Blocks of the first view."""
    total = comparison.total
    turned = share_text(total.turned, total.advantages)
    blocks: list[dict[str, Any]] = [
        {"kind": "title", "text": title},
        {"kind": "text", "text": verdict(comparison)},
        *({"kind": "text", "text": note} for note in notes),
        {
            "kind": "cards",
            "pairs": [
                ("rollouts", str(total.n)),
                ("old reward", number_text(total.old_mean)),
                ("new reward", number_text(total.new_mean)),
                ("correlation", number_text(total.correlation)),
                ("sign changes", turned),
                ("without a new reward", str(comparison.failures.total())),
            ],
        },
    ]
    for name, parts in (("environment", comparison.by_env), ("step", comparison.by_step)):
        rows = [[str(key), *cells(own)] for key, own in parts.items()]
        blocks.append({"kind": "table", "head": [name, *HEAD], "rows": rows})
    if comparison.failures:
        rows = [
            [kind, str(count), comparison.failure_texts[kind]]
            for kind, count in comparison.failures.most_common()
        ]
        head = ["failure of the new reward", "rollouts", "first text"]
        blocks.append({"kind": "table", "head": head, "rows": rows})
    text = f"The {len(comparison.largest)} largest disagreements"
    return [*blocks, {"kind": "text", "text": text, "to": "rollouts"}]


def report_page(
    comparison: Comparison,
    records: Mapping[tuple[int, int], Mapping[str, Any]],
    title: str,
    notes: Sequence[str],
) -> bytes:
    """The report in a file.

    Args:
        records: of the largest disagreements, by group and row, with their texts.
    """
    kept = Kept()
    for gid, largest in rows_by(comparison.largest, lambda row: row.gid).items():
        group = disagreement(largest, [records[row.gid, row.row] for row in largest])
        facts = group_facts(group, gid)
        rows, replies, _ = group_replies(group, gid, facts, None, 0)
        for shown in rows if kept.add(replies) else ():
            kept.append(shown)
    kept.put({"runs": {"runs": [{"run_id": title, "path": title}]}})
    blocks = page_blocks(comparison, title, notes)
    return exported_page(
        kept.page_data(str(len(comparison.largest)), "", blocks=blocks, views=["", "rollouts"])
    )


def disagreement(
    rows: Sequence[Rescored], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Rollouts of a group, with their records, as a group of a file with both rewards by name."""
    first = rows[0]
    numbers = ", ".join(str(row.row) for row in rows)
    return {
        "messages": [messages_of_record(record) for record in records],
        "scores": [row.new for row in rows],
        "finish_reasons": [row.finish_reason for row in rows],
        "metadata": {
            "env": first.env or "",
            "item": first.item or "",
            "group": f"{first.gid}, rows {numbers}, step {first.step}",
            "named_rewards": [{"old": row.old, "new": row.new} for row in rows],
        },
    }


def messages_of_record(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a rollout, or its decoded texts as messages."""
    return record["messages"] or [
        {"role": "user", "content": record["prompt"] or ""},
        {"role": "assistant", "content": record["answer"] or ""},
    ]
