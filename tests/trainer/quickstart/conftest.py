"""A plan whose processes are not started."""

from __future__ import annotations

from pathlib import Path

import pytest

from example_trainer.quickstart.recipes import (
    Options,
    QuickstartPlan,
    ServingEngine,
    recipe_for,
)


@pytest.fixture
def plan(tmp_path):
    def make(model="smollm2", engine=ServingEngine.LOCAL, **options):
        chosen = Options(model=model, engine=engine, seed=3, out=tmp_path / "out", **options)
        return QuickstartPlan(
            options=chosen,
            recipe=recipe_for(model, chosen.steps),
            model_dir=Path("models/start"),
            serve_dir=Path("models/start"),
            repo=Path(__file__).resolve().parents[3],
            cores=2,
            api_port=18_000,
            server_port=18_001,
        )

    return make
