from __future__ import annotations

import pytest

from example_trainer.launch import node, slurm
from example_trainer.launch.plan import trainer_settings
from example_trainer.launch.roles import Endpoints
from tests.client.harness import announced, served_api


@pytest.fixture
def written(cluster):
    slurm.write(cluster, trainer_settings(cluster)[1].trainer_retries)
    return cluster


def test_only_the_address_of_the_api_travels_as_a_file(written, tmp_path):
    here = {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "55"}
    server = node.command_of(written, "inference", 1, None, here)
    assert (
        f"--api file://{tmp_path}/launch/endpoints/api --name inference-1 --url http://n7:"
        in (" ".join(server.argv))
    )
    api = node.command_of(written, "api", 0, None, here)
    assert api.argv[-3:] == ("--tokens", f"{tmp_path}/launch/tokens", "--insecure-plaintext")
    assert [one.name for one in (tmp_path / "launch" / "endpoints").iterdir()] == ["api"]
    trainer = node.command_of(written, "trainer", 0, "n1:29500", here)
    assert " ".join(trainer.argv).count("--rdzv-endpoint n1:29500 --rdzv-id 55") == 1


def test_an_api_without_an_address_is_named_in_the_timeout_error(cluster, tmp_path):
    cluster.slurm.wait_s = 0.01
    with pytest.raises(node.EndpointTimeout, match="the address of the API"):
        node.endpoints(cluster, tmp_path / "absent", sleep=lambda seconds: None)


def test_a_command_gets_the_addresses_of_the_servers_that_the_api_lists(written):
    with (
        served_api() as api,
        announced(api, "inference-0", api),
    ):  # the API answers /health, too
        written.inference.min_ready = 1
        assert node.listed_servers(written, Endpoints(api)) == (api,)
        written.inference.min_ready, written.slurm.wait_s = 2, 0.01
        with pytest.raises(node.EndpointTimeout, match="the inference servers"):
            node.listed_servers(written, Endpoints(api), sleep=lambda seconds: None)
