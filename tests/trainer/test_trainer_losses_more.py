"""gspo, sapo, m2po, reinforce, cross entropy and distillation against hand-made numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from atroposlib.errors import ConfigError
from example_trainer import losses
from example_trainer.losses.distillation import distill_sum
from example_trainer.losses.m2po import batch_mask, kept
from tests.trainer.loss_batches import (
    gradient,
    one_token,
    random_batch,
    run,
    settings,
    value_and_slope,
)


def batch_of_ratios(ratios, advantages, mask):
    """float64 rows whose policy / behaviour ratios are these; proximal = policy."""
    batch = random_batch(rows=len(ratios), tokens=len(ratios[0]))
    batch["logprobs"] = batch["behaviour"] + torch.tensor(ratios, dtype=torch.double).log()
    batch["proximal"] = batch["logprobs"].clone()
    batch["advantages"] = torch.tensor(advantages, dtype=torch.double)
    batch["mask"] = torch.tensor(mask, dtype=torch.double)
    return batch


# --- gspo -----------------------------------------------------------------------------------


def test_gspo_clips_whole_sequences_by_their_geometric_mean():
    """s = (4 x 1)^(1/2) = 2, 0.5, 0.5, 2 with eps 0.2; A per row +1, +1, -1, -1.

    -min(s A, clip(s) A) = -1.2, -0.5, 0.8, 2; two tokens each; clipped: rows 0 and 2.
    """
    batch = batch_of_ratios(
        [[4.0, 1e9, 1.0], [0.5, 1e9, 0.5], [0.25, 1e9, 1.0], [4.0, 1e9, 1.0]],
        [[1.0], [1.0], [-1.0], [-1.0]],
        [[1.0, 0.0, 1.0]] * 4,
    )
    cfg = settings(clip_eps=0.2)
    loss, metrics = run("gspo", batch, cfg)
    assert float(loss) == pytest.approx(2 * (-1.2 - 0.5 + 0.8 + 2.0))
    assert int(metrics["clip_ratio"]) == 4
    assert float(metrics["ratio_mean"]) == pytest.approx(2 * (2 + 0.5 + 0.5 + 2))
    # d loss / d logprob of each trained token: two tokens x s / 2 each, -A s; 0 if clipped
    slopes = torch.tensor([0.0, -0.5, 0.0, 2.0], dtype=torch.double)
    assert torch.allclose(gradient("gspo", batch, cfg)[:, 0], slopes)


def test_gspo_with_weights_of_the_sequence_aggregation_is_the_paper_s_mean():
    """Weights 1 / length: -min(s A, clip(s) A) counts once per row, however long it is."""
    batch = batch_of_ratios([[1.1, 1.1], [0.9, 1.0]], [[1.0], [1.0]], [[0.5, 0.5], [1.0, 0.0]])
    loss, _ = run("gspo", batch, settings(clip_eps=0.2))
    assert float(loss) == pytest.approx(-1.1 - 0.9)


def test_gspo_judges_a_row_by_its_mean_advantage():
    """s = 2, A = 3 and -1, so 1: both tokens -1.2. Judged apart they would be -3.6 and 2."""
    batch = batch_of_ratios([[2.0, 1e9, 2.0]], [[3.0, 99.0, -1.0]], [[1.0, 0.0, 1.0]])
    loss, metrics = run("gspo", batch, settings(clip_eps=0.2))
    assert float(loss) == pytest.approx(-2.4)
    assert int(metrics["clip_ratio"]) == 2


# --- sapo -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "tau"), [(1.0, 2.0, 1.0), (1.5, 2.0, 1.0), (1.5, -2.0, 1.05)]
)
def test_sapo_is_a_sigmoid_gate_whose_temperature_goes_by_sign(ratio, advantage, tau):
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    loss, slope = value_and_slope("sapo", one_token(ratio, advantage))
    assert loss == pytest.approx(-4 / tau * gate * advantage)
    assert slope == pytest.approx(-4 * gate * (1 - gate) * ratio * advantage)


def test_sapo_at_ratio_one_has_the_full_gradient_and_fades_to_both_sides():
    full = value_and_slope("sapo", one_token(1.0, 2.0))
    assert full == pytest.approx((-4.0, -2.0))  # 4 sigmoid(0) A = 2 A; slope A
    for ratio in (4.0, 10.0):
        _, slope = value_and_slope("sapo", one_token(ratio, 2.0))
        assert abs(slope) < ratio * 2.0  # of the ratio without a gate


def test_sapo_temperatures_are_settings():
    cfg = settings(sapo_tau_positive=2.0, sapo_tau_negative=3.0)
    for advantage, tau in ((1.0, 2.0), (-1.0, 3.0)):
        expected = -4 / tau / (1 + math.exp(-tau * 0.5)) * advantage
        assert value_and_slope("sapo", one_token(1.5, advantage), cfg)[0] == pytest.approx(
            expected
        )


# --- m2po -----------------------------------------------------------------------------------

LOG_W = [1.0, 0.3, 0.1, 0.0]  # squares 1, 0.09, 0.01, 0


@pytest.mark.parametrize(
    ("log_w", "threshold", "expected"),
    [
        (LOG_W, 0.3, [True, True, True, True]),  # mean 0.275
        (LOG_W, 0.04, [False, True, True, True]),  # mean of the rest 0.0333
        (LOG_W, 0.03, [False, False, True, True]),
        ([3.0, -2.0, 4.0], 0.04, [False, True, False]),  # one always stays
        ([0.3, 0.3, 0.0, 0.0], 0.04, [False, True, True, True]),  # of equals the earlier
        ([], 0.04, []),
    ],
)
def test_m2po_leaves_out_the_fewest_farthest_tokens(log_w, threshold, expected):
    m2 = torch.tensor(log_w, dtype=torch.double) ** 2
    assert kept(m2, threshold).tolist() == expected


def test_m2po_is_the_unclipped_ratio_of_kept_tokens():
    """log w as above, A = 2: the token with log w = 1 adds nothing, the others r A."""
    batch = random_batch(rows=2, tokens=2)
    batch["proximal"] = batch["behaviour"] + torch.tensor(LOG_W, dtype=torch.double).view(2, 2)
    batch["logprobs"] = batch["behaviour"] + math.log(3.0)
    batch["advantages"], batch["mask"] = torch.full((2, 2), 2.0), torch.ones(2, 2)
    loss, metrics = run("m2po", batch)
    assert float(loss) == pytest.approx(-3 * 3.0 * 2.0)
    assert int(metrics["filtered_ratio"]) == 1
    assert gradient("m2po", batch).flatten().tolist() == pytest.approx([0, -6, -6, -6])


def test_the_verdict_of_m2po_on_the_batch_does_not_depend_on_passes():
    """Alone, row 0 would lose its far token; beside row 1 the mean is small enough."""
    far = batch_of_ratios([[math.exp(0.4), 1.0]], [[1.0]], [[1.0, 1.0]])
    keep = batch_mask([[0.4, 0.0], [0.0] * 8], [[0.0, 0.0], [0.0] * 8], settings())
    assert keep == [[True, True], [True] * 8]
    alone, _ = run("m2po", far)
    with_verdict, _ = run("m2po", far, keep=torch.tensor(keep[:1]))
    assert float(alone) == pytest.approx(-1.0)
    assert float(with_verdict) == pytest.approx(-1.0 - math.exp(0.4))


@hypothesis_settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.floats(-2, 2), max_size=5), max_size=5),
    st.sampled_from([1e-3, 0.04, 1.0]),
)
def test_the_batch_mask_of_m2po_is_the_smallest_that_meets_the_threshold(log_w_R_T, limit):
    zeros = [[0.0] * len(row) for row in log_w_R_T]
    keep_R_T = batch_mask(log_w_R_T, zeros, settings(m2_threshold=limit))
    assert [len(row) for row in keep_R_T] == [len(row) for row in log_w_R_T]
    m2 = sorted(x * x for row in log_w_R_T for x in row)
    wanted = [n for n in range(1, len(m2) + 1) if sum(m2[:n]) / n < limit]
    assert sum(map(sum, keep_R_T)) == max([1, *wanted] if m2 else [0])


def test_only_m2po_asks_for_a_verdict_on_the_batch():
    assert losses.batch_mask("decoupled") is None
    assert losses.batch_mask("m2po") is batch_mask


# --- reinforce and cross entropy ------------------------------------------------------------


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize(("kind", "weight"), [("none", 1.0), ("truncate", 5.0), ("mask", 0.0)])
def test_reinforce_weighs_the_policy_gradient(advantage, kind, weight):
    """log p = log 0.2; proximal / behaviour = 8, above the cap of 5."""
    batch = one_token(1.0, advantage, proximal=1.0, behaviour=1 / 8)
    expected = (-weight * advantage * math.log(0.2), -weight * advantage)
    found = value_and_slope("reinforce", batch, settings(importance_weight=kind))
    assert found == pytest.approx(expected)


def test_cross_entropy_is_the_log_loss_whatever_the_advantage():
    batch = one_token(1.0, -7.0)
    assert value_and_slope("cross_entropy", batch) == pytest.approx((-math.log(0.2), -1.0))
    batch["mask"] = batch["mask"] / 4
    loss, metrics = run("cross_entropy", batch)
    assert float(loss) == pytest.approx(-math.log(0.2) / 4)
    assert float(metrics["nll"]) == pytest.approx(-math.log(0.2))


# --- distillation ---------------------------------------------------------------------------


def distill(student, teacher, mask=None, present=None, **fields):
    student = torch.tensor(student, dtype=torch.double).log()[None]
    teacher = torch.tensor(teacher, dtype=torch.double).log()[None]
    mask = torch.ones(student.shape[:2]) if mask is None else torch.tensor([mask])
    present = None if present is None else torch.tensor([present])
    return losses.get("distillation")(
        student[..., 0],
        None,
        None,
        None,
        mask,
        settings(**fields),
        student_logprobs=student,
        teacher_logprobs=teacher,
        teacher_mask=present,
    )


def test_distillation_by_hand():
    """tau 2: teacher 0.64, 0.16 -> 0.8, 0.4 -> 2/3, 1/3; student log 1/2, log 1/4.

    4 (2/3 log 2 + 1/3 log 4) = 16/3 log 2; less the entropy of the teacher, 4 x 0.6365.
    """
    loss, metrics = distill([[0.5, 0.25]], [[0.64, 0.16]], distill_temperature=2.0)
    assert float(loss) == pytest.approx(16 / 3 * math.log(2))
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert float(metrics["distill_kl"]) == pytest.approx(16 / 3 * math.log(2) - 4 * entropy)
    assert int(metrics["distill_share"]) == 1


def test_a_student_that_agrees_has_no_divergence():
    _, metrics = distill([[0.75, 0.25]], [[0.3, 0.1]])  # the teacher is renormalised over K
    assert float(metrics["distill_kl"]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_the_gradient_on_logits_is_student_minus_teacher_times_tau(tau):
    logits = torch.randn(1, 2, 4, dtype=torch.double, requires_grad=True)
    teacher = torch.randn(1, 2, 4, dtype=torch.double).log_softmax(-1)
    loss = distill_sum(
        (logits / tau).log_softmax(-1),
        teacher,
        torch.ones(1, 2),
        None,
        tau,
    )
    (found,) = torch.autograd.grad(loss, logits)
    expected = tau * ((logits / tau).softmax(-1) - (teacher / tau).softmax(-1))
    assert torch.allclose(found, expected.detach())


def test_positions_without_a_teacher_add_nothing():
    """Of three trained tokens one has both entries, one a single one, one none at all."""
    nan = float("nan")
    student = [[0.5, 0.25], [0.5, nan], [nan, nan], [nan, nan]]
    teacher = [[0.5, 0.5], [0.9, nan], [nan, nan], [0.5, 0.5]]
    present = [[True, True], [True, False], [False, False], [True, True]]
    loss, metrics = distill(student, teacher, [1.0, 1.0, 1.0, 0.0], present)
    assert float(loss) == pytest.approx(
        -0.5 * math.log(0.5) - 0.5 * math.log(0.25) + math.log(2)
    )
    assert int(metrics["distill_share"]) == 2


def test_a_token_that_the_teacher_rules_out_has_no_part():
    loss, _ = distill([[0.5, 0.0]], [[0.5, 0.0]])
    assert float(loss) == pytest.approx(math.log(2))


def test_a_batch_without_any_entry_of_a_teacher_is_zero():
    student = torch.zeros(2, 3, 0, requires_grad=True)
    loss = distill_sum(student, torch.zeros(2, 3, 0), torch.ones(2, 3), None, 1.0)
    loss.backward()
    assert float(loss.detach()) == 0.0


def test_distillation_without_a_teacher_says_what_to_do():
    batch = random_batch()
    with pytest.raises(ConfigError, match="TeacherDistillationEnv"):
        losses.get("distillation")(
            batch["logprobs"], None, None, None, batch["mask"], settings()
        )
