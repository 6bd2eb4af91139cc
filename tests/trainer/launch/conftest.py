"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from tests.trainer.launch.launch_plans import plan


@pytest.fixture
def cluster(tmp_path):
    return plan(
        "trainer.nodes=2",
        "trainer.nproc=8",
        "inference.count=4",
        "inference.tensor_parallel=2",
        "slurm.options.partition='gpu long'",
        "slurm.setup=[source venv/bin/activate]",
        "slurm.srun=[--container-image=a b]",
        out=tmp_path,
    )
