"""Rollouts of a trial as one .html file, by the page of scored groups."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.text.lines import json_line

ROW_FIELDS = ("tokens", "masks", "inference_logprobs", "versions", "images")


class TrialPage:
    """Groups of a trial; without a file they are not kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._groups: list[dict[str, Any]] = []
        self._tokenizer: Any = None

    def add(
        self,
        tokenizer: Any,
        row: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        score: float | None,
        about: Mapping[str, Any],
    ) -> None:
        """Add a row with its messages; ``about``: env, item and named rewards."""
        if self._file is None:
            return
        self._tokenizer = tokenizer
        fields = {name: [row[name]] for name in ROW_FIELDS if row.get(name) is not None}
        named = dict(about.get("rewards") or {})
        metadata = {
            "env": about.get("env"),
            "item": about.get("item"),
            "named_rewards": [named],
        }
        self._groups.append(
            {
                **fields,
                "messages": [[*messages]],
                "scores": [score],
                "finish_reasons": [row.get("finish_reasons")],
                "metadata": metadata,
            }
        )

    def write(self) -> None:
        """Write the page, if a file was named, and print its path."""
        if self._file is None:
            return
        from atroposlib.frontend.jsonl2html import generate_html

        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder) / f"{self._file.stem}.jsonl"
            lines.write_text("".join(map(json_line, self._groups)), encoding="utf-8")
            generate_html(str(lines), str(self._file), self._tokenizer)
        print(f"{len(self._groups)} rows in {self._file}")
