"""Answers of several runs to a task: of held-out checks, or the newest rollouts, with their texts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from atroposlib.api.archive.filters import name_of_label
from atroposlib.errors import AtroposError
from atroposlib.run_status.heldout import Heldout, lines_of, sample_of
from atroposlib.run_status.polling import API_TIMEOUT_S, Silent, get
from atroposlib.workbench.catalogue import CatalogueEntry
from atroposlib.workbench.run_verdict import is_trusted
from atroposlib.workbench.task_results import heldout_task
from atroposlib.workbench.views import Views

MAX_ANSWERS = 8  # newest answers of a run
MAX_ROWS = 100  # rows of an item, of all environments that have it
MAX_TEXT = 20_000  # characters of an answer
Ask = Callable[[str, Mapping[str, str]], Any]  # path below /explore, filters -> JSON values


def answers_document(
    entries: Sequence[CatalogueEntry], task: str, source: str, views: Views
) -> dict[str, Any]:
    """The newest answers of each run, the oldest first, or the problem of the run."""
    runs = []
    for entry in entries:
        heldout = entry.files.heldout() if source != "rollouts" else None
        column: dict[str, Any] = {"key": entry.run.key, "name": entry.run.name, "answers": []}
        try:
            if heldout is not None:
                column |= heldout_answers(heldout, task)
            else:
                column |= rollouts_of_run(entry, task, views)
        except (AtroposError, Silent) as error:
            column["problem"] = str(error)
        runs.append(column)
    return {"task": task, "runs": runs}


def heldout_answers(heldout: Heldout, task: str) -> dict[str, Any]:
    """Answers of the last checks to a held-out task."""
    samples = [
        sample_of(line, check)
        for check in heldout.read()
        for line in lines_of(check)
        if heldout_task(line) == task
    ]
    answers = [
        {
            "step": sample.step,
            "reward": sample.reward,
            "text": sample.completion[:MAX_TEXT],
            "right": sample.right,
        }
        for sample in samples[-MAX_ANSWERS:]
    ]
    about = {"prompt": samples[-1].prompt, "expected": samples[-1].expected} if samples else {}
    return {"answers": answers, **about}


def rollouts_of_run(entry: CatalogueEntry, task: str, views: Views) -> dict[str, Any]:
    """The newest rollouts of a task, of the API of a live run or of the folder of another."""
    if entry.address is not None:
        address = entry.address
        token = os.environ.get("ATROPOS_API_TOKEN") if is_trusted(address) else None

        def ask_api(path: str, query: Mapping[str, str]) -> Any:
            body, _ = get(f"{address}/explore/{path}?{urlencode(query)}", API_TIMEOUT_S, token)
            return json.loads(body)

        return rollout_answers(ask_api, task)
    with views.use(entry.run) as view:

        def ask_folder(path: str, query: Mapping[str, str]) -> Any:
            name, _, number = path.partition("/")
            explorer = view.explorer
            reply = explorer.group(int(number), query) if number else explorer.rollouts(query)
            return msgspec.to_builtins(reply)

        return rollout_answers(ask_folder, task)


def rollout_answers(ask: Ask, task: str) -> dict[str, Any]:
    """The newest rollouts of ``environment/item``, with prompt and texts."""
    rows = newest_rows(ask, task)
    groups = {
        gid: ask(f"groups/{gid}", {}) for gid in dict.fromkeys(row["gid"] for row in rows)
    }
    answers = []
    prompt = None
    for row in reversed(rows):
        [full] = [r for r in groups[row["gid"]]["rows"] if r["row"] == row["row"]]
        prompt = full["prompt"] or prompt
        text = full["completion"]
        answers.append(
            {
                "step": row["step"] if row["step"] is not None else row["batch_no"],
                "reward": row["reward"],
                "text": None if text is None else text[:MAX_TEXT],
                "right": None,
            }
        )
    return {"answers": answers, "prompt": prompt}


def newest_rows(ask: Ask, task: str) -> list[dict[str, Any]]:
    """Rows of a task; names of environments and items may hold the slash that joins them."""
    words = task.split("/")
    for at in range(1, len(words)):
        env, item = "/".join(words[:at]), "/".join(words[at:])
        query = {"item": item, "sort": "-arrived", "limit": str(MAX_ROWS)}
        rows: list[dict[str, Any]] = ask("rollouts", query)["rows"]
        # A task has the name of its environment without the number.
        rows = [row for row in rows if env in (row["env"], name_of_label(row["env"] or ""))]
        if rows:
            return rows[:MAX_ANSWERS]
    return []
