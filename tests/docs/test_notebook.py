"""The code of the notebook runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "examples" / "one_group.ipynb"


def code_cells() -> list[dict]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_every_output_is_text_of_a_past_run() -> None:
    kinds = {output["output_type"] for cell in code_cells() for output in cell["outputs"]}
    assert kinds == {"stream"}


@pytest.mark.slow
def test_the_cells_run(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for cell in code_cells():
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    finally:
        names["server"].kill()  # type: ignore[attr-defined]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("largest difference to the server")]
    assert lines[-1].startswith("advantage-weighted change of the mean logprob")
