"""The real packages, the fake inference server, and a real one with a tiny model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.environments.conftest import evaluated, groups_made, make_env, trained_text
from tests.envs.function_env.function_toys import groups_in

__all__ = ["evaluated", "groups_made", "make_env", "trained_text"]
REQUIRED = "ATROPOS_ADAPTER_TESTS"
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300.0  # only a hang reaches it


@pytest.fixture(autouse=True)
def package(request):
    require(getattr(request.module, "PACKAGE", None))


def require(name: str | None) -> None:
    """Skip a test whose package is missing, or fail where packages are required."""
    if name is not None and find_spec(name) is None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1 and no package {name}")
        pytest.skip(f"the package {name} is missing: make adapters")


WRITE_MODEL = """
import sys
from pathlib import Path
from atroposlib.testing.tiny import ASCII_ALPHABET, write_tiny_model
write_tiny_model(Path(sys.argv[1]), max_positions=4096, alphabet=ASCII_ALPHABET)
"""


@pytest.fixture(scope="session")
def local(tmp_path_factory) -> Iterator[str]:
    """URL of the local inference server with a tiny model of random weights, as a process.

    Its Python may be that of another environment, since the packages here need no torch.
    """
    python = os.environ.get("ATROPOS_TORCH_PYTHON", sys.executable)
    if python == sys.executable and find_spec("torch") is None:
        pytest.skip("the local inference server needs torch: make adapters")
    directory = str(tmp_path_factory.mktemp("tiny"))
    subprocess.run(
        [python, "-c", WRITE_MODEL, directory], cwd=ROOT, check=True, timeout=WAIT_S
    )
    words = [
        "--model",
        directory,
        "--served-model-name",
        "fake",
        "--threads",
        "1",
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [python, "-m", "atroposlib.inference", *words], stdout=PIPE, text=True, cwd=ROOT
    )
    try:
        line = process.stdout.readline()
        yield re.search(r"https?://\S+?:\d+", line)[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def sampled(local, make_env, tmp_path):
    """Groups of four that the tiny model samples, with their logprobs and versions checked."""

    async def run(env_cls, **settings):
        (tmp_path / "groups.jsonl").unlink(missing_ok=True)
        once = {"group_size": 4, "total_steps": 1, "max_num_workers": 1}
        env = make_env(env_cls, local, **once, **settings)
        # Several groups of one item: a random role marker in a reply forks the conversation.
        assert await env.process_manager() >= 1
        groups = groups_in(tmp_path)
        assert any(label != -100 for label in groups[0]["masks"][0])
        for group in groups:
            assert len(group["tokens"]) == len(group["scores"]) == 4
            for labels, logprobs, versions in zip(
                group["masks"], group["inference_logprobs"], group["versions"]
            ):
                trained = [i for i, label in enumerate(labels) if label != -100]
                assert all(logprobs[i] < 0 and versions[i] == 0 for i in trained)
        return groups

    return run
