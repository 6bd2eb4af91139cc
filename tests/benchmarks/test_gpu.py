"""The runner of the checks on a GPU, and its dry run on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import gpu
import pytest
import torch

from atroposlib.inference.engine import served_model
from atroposlib.utils.models.low_precision import wide_product
from example_trainer.model import fused_logprobs, scoring
from gpuchecks import arithmetic, footprint, rounding
from gpuchecks.figures import Place, below, ratio

PAGE = Path(gpu.__file__).parents[1] / "docs" / "gpu.md"


def options(tmp_path, device="cpu"):
    return Namespace(device=device, out=tmp_path)


def test_a_check_that_is_late_is_ended_and_fails(tmp_path):
    check = replace(gpu.CHECKS[0], bound_s=0.01)
    outcome = gpu.in_own_process(check, options(tmp_path), tmp_path, left_s=60)
    assert (outcome.verdict, outcome.reason) == ("failed", "not done within 0 s")
    assert (tmp_path / "gpu.log").read_text().startswith("=== arithmetic")


def test_without_time_left_a_check_fails_and_does_not_start(tmp_path):
    outcome = gpu.in_own_process(gpu.CHECKS[0], options(tmp_path), tmp_path, left_s=0)
    assert (outcome.verdict, outcome.reason) == ("failed", "no time was left")


def test_dry_run_names_what_needs_a_device(tmp_path):
    check = next(check for check in gpu.CHECKS if check.name == "nccl")
    outcome = gpu.in_own_process(check, options(tmp_path), tmp_path, left_s=60)
    assert (outcome.verdict, outcome.reason) == ("left out", "NCCL needs CUDA")


def test_checks_are_chosen_by_name_and_by_group():
    names = [check.name for check in gpu.chosen_checks("long rows, nccl", "cuda")]
    assert names == ["nccl", "long rows 0.6b", "long rows 4b lora"]
    all_of_a_gpu = {check.group for check in gpu.chosen_checks(None, "cuda")}
    assert all_of_a_gpu == {"truth", "speed"}
    with pytest.raises(
        SystemExit, match=r"no check is called \['sped'\]; there are truth, speed"
    ):
        gpu.chosen_checks("sped", "cuda")


def test_page_marks_a_figure_beyond_its_limit_and_gives_ratios():
    figures = [vars(below("gradient", float("nan"), 0.1)), vars(ratio("a", 4, 2, "t/s", "b"))]
    page = gpu.page({"device": "X"}, [gpu.Outcome("c", "failed", 1.0, "gradient", figures)])
    assert "| gradient | nan | <= 0.1 | **no** |" in page
    assert "| a | 4 t/s | 2.00 x b |  |" in page


def test_memory_is_that_of_weights_moments_and_the_residual_stream_by_hand():
    """7B on eight, AdamW: 16 B x 7.62e9 / 8 = 15.2 GB; two layers of 0.25e9 and the head of
    0.545e9 in bfloat16, its float32 gradient; 16,384 x 3584 x (28 x 4 + 40) bytes; 5.5 GB more.
    """
    seven = next(model for model in footprint.MODELS if model.name == "7B")
    layer = (7.62e9 - 0.545e9) / 28
    by_hand = 15.24 + 2 * (2 * layer + 0.545e9) / 1e9 + 4 * 0.545 + 8.93 + 5.5
    assert footprint.bytes_on_each(seven, "adamw", 8) / 1e9 == pytest.approx(by_hand, abs=0.05)
    assert footprint.table() in PAGE.read_text(encoding="utf-8")


def rounded_logits(patch):
    def rounded(left, right):
        product = wide_product(left, right)
        return (
            product.bfloat16().to(product.dtype) if left.dtype == torch.bfloat16 else product
        )

    patch.setattr(fused_logprobs, "wide_product", rounded)


def rounded_residual(patch):
    def narrow(embedding, dtype):
        if dtype is not torch.float32:
            embedding.register_forward_hook(lambda module, inputs, output: output.to(dtype))

    patch.setattr(scoring, "widen_residual", narrow)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [rounded_logits, rounded_residual])
def test_arithmetic_that_rounds_more_than_ours_is_noticed(fault, monkeypatch, tmp_path):
    fault(monkeypatch)
    figures = arithmetic.arithmetic(Place("cpu", tmp_path))
    wrong = [figure.what for figure in figures if not figure.ok]
    assert wrong and all("over that of the reference" in what for what in wrong)


@pytest.mark.slow
def test_a_server_that_rounds_more_than_ours_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(served_model, "widen_residual", lambda embedding, dtype: None)
    figures = rounding.rounding(Place("cpu", tmp_path))
    wrong = [figure.what for figure in figures if not figure.ok]
    assert wrong == ["random: server: logprob error over that of the reference"]


@pytest.mark.campaign
def test_dry_run_proves_every_path_that_a_cpu_allows(tmp_path):
    command = [sys.executable, gpu.__file__, "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log = tmp_path / "gpu.log"
    assert done.returncode == 0, done.stderr + (
        log.read_text()[-5000:] if log.exists() else ""
    )
    found = json.loads((tmp_path / "gpu.json").read_text())
    verdicts = {check["name"]: check["verdict"] for check in found["checks"]}
    left_out = {check.name for check in gpu.CHECKS if check.not_dry}
    assert verdicts == {
        check.name: "left out" if check.name in left_out else "passed" for check in gpu.CHECKS
    }
