from __future__ import annotations

import pytest

from example_trainer.launch import node, slurm
from example_trainer.launch.plan import trainer_settings


def test_jobs_exchange_addresses_by_files(cluster, tmp_path):
    _, cfg = trainer_settings(cluster)
    slurm.write(cluster, cfg.trainer_retries)
    here = {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "55"}
    api = node.command_of(cluster, "api", 0, None, here)
    assert api.argv[-3:] == ("--tokens", f"{tmp_path}/launch/tokens", "--insecure-plaintext")
    for index in range(4):
        node.command_of(cluster, "inference", index, None, here)
    found = node.endpoints(cluster)
    assert found.api.startswith("http://n7:") and len(found.inference) == 4
    trainer = node.command_of(cluster, "trainer", 0, "n1:29500", here)
    assert " ".join(trainer.argv).count("--rdzv-endpoint n1:29500 --rdzv-id 55") == 1


def test_missing_job_is_named_in_the_timeout_error(cluster, tmp_path):
    late = cluster.model_copy(
        update={"slurm": cluster.slurm.model_copy(update={"wait_s": 0.01})}
    )
    node.announce(late, "api", "n1", 8000)
    with pytest.raises(node.EndpointTimeout, match="inference-0, inference-1.* did not start"):
        node.endpoints(late, sleep=lambda seconds: None)
