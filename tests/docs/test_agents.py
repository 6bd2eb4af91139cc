"""The page about agents shows the code of its example, and the example runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.generation.proxy.proxy_kit import write_tool_model
from tests.serving import served

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = DOCS / "examples" / "agent_by_base_url.py"


def code_lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def test_the_code_of_the_page_is_part_of_the_example() -> None:
    page = (
        (DOCS / "agents.md").read_text(encoding="utf-8").partition("\n## Agents of other")[0]
    )
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert len(blocks) == 2
    shown = {line for block in blocks for line in code_lines(block) if "..." not in line}
    renamed = {
        line.replace("load_tokenizer(config)", "tokenizer")
        .replace("options.model)", "model_name)")
        .replace("return session.rows()", "rows = session.rows()")
        .replace("return from_nodes", "group = from_nodes")
        for line in code_lines(SCRIPT.read_text(encoding="utf-8"))
    }
    assert shown - {""} <= renamed


@pytest.mark.slow
def test_the_example_runs_on_a_tiny_model(tmp_path: Path) -> None:
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app

    model = write_tool_model(tmp_path / "model")
    engine = Engine(load_model(str(model)), EngineLimits(), seed=0, num_threads=1)
    engine.start()
    with served(create_app(engine)) as url:
        command = [sys.executable, str(SCRIPT), "--base-url", f"{url}/v1"]
        done = subprocess.run(
            [*command, "--model", str(model), "--size", "3"],
            capture_output=True,
            text=True,
            timeout=300,
        )
    engine.close()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 3
    assert all(line.endswith(("score 0.0", "score 1.0")) for line in lines)
