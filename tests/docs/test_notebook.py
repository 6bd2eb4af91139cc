"""The code of each notebook runs from top to bottom, those of recipes with fewer steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atroposlib.testing.tiny import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


def code_cells(name: str) -> list[dict]:
    notebook = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(name: str, changes: dict[str, str], names: dict[str, object]) -> None:
    """Run the cells with lines replaced; each line has to be there once."""
    codes = ["".join(cell["source"]) for cell in code_cells(name)]
    assert [sum(code.count(line) for code in codes) for line in changes] == [1] * len(changes)
    for code in codes:
        for line, changed in changes.items():
            code = code.replace(line, changed)
        exec(compile(code, name, "exec"), names)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_output_is_text_of_a_past_run(name) -> None:
    kinds = {output["output_type"] for cell in code_cells(name) for output in cell["outputs"]}
    assert kinds == {"stream"}


@pytest.mark.slow
def test_the_cells_of_one_group_run(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        run_cells("one_group", {}, names)
    finally:
        names["server"].kill()  # type: ignore[attr-defined]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("largest difference to the server")]
    assert lines[-1].startswith("advantage-weighted change of the mean logprob")


@pytest.mark.slow
def test_the_cells_of_the_calculator_run(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(ROOT)
    model = write_tiny_model(tmp_path / "tiny")
    changes = {
        'MODEL, STEPS = "smollm2", 8': f'MODEL, STEPS = "{model}", 1',
        'Path("runs/calculator/notebook")': f'Path("{tmp_path}/calculator")',
    }
    run_cells("calculator", changes, {"__name__": "__main__"})
    text = capsys.readouterr().out
    assert "assistant: That is <calc>" in text
    assert "step 1, reward 0.0" in text
    assert "tokens returned by servers" in text


@pytest.mark.slow
def test_the_cells_of_self_play_run(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(ROOT)
    changes = {
        "IMITATION_STEPS, STEPS = 400, 30": "IMITATION_STEPS, STEPS = 20, 1",
        "legal_games.py 6000": "legal_games.py 300",
        'Path("runs/self_play/notebook")': f'Path("{tmp_path}/self_play")',
    }
    run_cells("self_play", changes, {"__name__": "__main__"})
    text = capsys.readouterr().out
    assert "step 1: illegal" in text
    assert "newest policy" in text
