"""Properties that every loss has, as checks for tests: of the losses here, and of plug-ins.

    @pytest.mark.parametrize("check", PROPERTIES)
    def test_the_loss(check):
        check(loss)

A check raises AssertionError with the property that does not hold. All but
``check_the_gradient`` hold for every loss; a weight that follows the policy without a gradient
(``cispo``) is no derivative of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings

if TYPE_CHECKING:
    from example_trainer.losses import Formula

SETTINGS = LossSettings.model_validate({})
ABSURD = (float("nan"), float("inf"), -float("inf"), 1e30)
FIELDS = (
    "logprobs",
    "proximal_logprobs",
    "behaviour_logprobs",
    "advantages",
    "loss_mask",
    "keep",
    "teacher_logprobs",
    "teacher_sampled",
)


def random_inputs(
    rows: int = 3, tokens: int = 5, seed: int = 0, spread: float = 0.3
) -> LossInputs:
    """Inputs in float64; three policies a little apart, some tokens not trained, and a teacher."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.double, generator=generator)

    behaviour = -noise(rows, tokens).abs() - 0.1
    proximal = behaviour + spread * noise(rows, tokens)
    mask = (torch.rand(rows, tokens, generator=generator) < 0.7).double()
    mask[:, 0] = 1.0
    logprobs = proximal + spread * noise(rows, tokens)
    advantages, teacher = noise(rows, tokens), -noise(rows, tokens, 3).abs()
    inputs = LossInputs(
        logprobs,
        proximal,
        behaviour,
        advantages,
        mask,
        teacher_logprobs=teacher,
        teacher_sampled=teacher[..., 0],
    )
    return with_logprobs(inputs, logprobs)


def with_logprobs(inputs: LossInputs, logprobs: Tensor) -> LossInputs:
    """The inputs at other logprobs of the policy, which the student of a teacher follows."""
    offsets = torch.tensor([0.1, 1.0, 2.0], dtype=logprobs.dtype)
    student = logprobs.unsqueeze(-1) - offsets
    return replace(inputs, logprobs=logprobs, student_logprobs=student, clipped=[])


def gradient(loss: Formula, inputs: LossInputs, settings: LossSettings = SETTINGS) -> Tensor:
    """(B, T) derivative of the loss by ``logprobs``."""
    logprobs = inputs.logprobs.clone().requires_grad_()
    total, _ = loss(with_logprobs(inputs, logprobs), settings)
    (slope,) = torch.autograd.grad(total, logprobs, allow_unused=True)
    assert slope is not None, "the loss has no gradient by batch.logprobs"
    return slope


def changed(inputs: LossInputs, change: Callable[[Tensor], Tensor]) -> LossInputs:
    """The inputs with each tensor changed."""
    values: dict[str, Any] = {name: getattr(inputs, name) for name in FIELDS}
    tensors: dict[str, Any] = {
        name: change(value) for name, value in values.items() if value is not None
    }
    return with_logprobs(replace(inputs, **tensors), tensors["logprobs"])


def check_the_gradient(loss: Formula, settings: LossSettings = SETTINGS) -> None:
    """The gradient is the derivative of the value."""
    for seed in range(2):
        inputs = random_inputs(seed=seed)

        def value(logprobs: Tensor, inputs: LossInputs = inputs) -> Tensor:
            return loss(with_logprobs(inputs, logprobs), settings)[0]

        point = inputs.logprobs.clone().requires_grad_()
        is_derivative = torch.autograd.gradcheck(value, (point,), raise_exception=False)
        assert is_derivative, "the gradient is not the derivative of the value"


def check_masked_entries(loss: Formula, settings: LossSettings = SETTINGS) -> None:
    """Entries that are not trained change neither value nor gradient, of any value."""
    inputs = random_inputs()
    untrained = inputs.loss_mask == 0
    remedy = "read tensors through batch.tokens.only(values)"
    for absurd in ABSURD:
        values = {name: getattr(inputs, name).clone() for name in FIELDS if name != "keep"}
        for name in values.keys() - {"loss_mask"}:
            values[name][untrained] = absurd
        dirty = with_logprobs(replace(inputs, **values), values["logprobs"])
        total, metrics = loss(inputs, settings)
        same, same_metrics = loss(dirty, settings)
        assert total == same, f"masked entries of {absurd} change the value: {remedy}"
        assert metrics == same_metrics, f"masked entries of {absurd} change metrics: {remedy}"
        slope = gradient(loss, dirty, settings)
        is_equal = torch.equal(slope, gradient(loss, inputs, settings))
        assert is_equal, f"masked entries of {absurd} change the gradient: {remedy}"
        assert not slope[untrained].any(), "tokens that are not trained have a gradient"


def check_nan_shows(loss: Formula, settings: LossSettings = SETTINGS) -> None:
    """A NaN in a trained token makes the value NaN: the step is skipped and counted."""
    inputs = random_inputs()
    logprobs = inputs.logprobs.clone()
    logprobs[0, 0] = float("nan")
    total, _ = loss(with_logprobs(inputs, logprobs), settings)
    assert total.isnan(), "a NaN of a trained token is lost: do not clamp or mask NaN away"


def check_parts_add_up(
    loss: Formula, settings: LossSettings = SETTINGS, inputs: LossInputs | None = None
) -> None:
    """Parts of a batch add up to the whole, in any order of its rows: no mean over the batch."""
    inputs = random_inputs(rows=6) if inputs is None else inputs
    rows = len(inputs.logprobs)
    whole, metrics = loss(inputs, settings)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(rows, generator=generator)
        cut = int(torch.randint(rows + 1, (), generator=generator))
        first = loss(changed(inputs, lambda t: t[order[:cut]]), settings)
        rest = loss(changed(inputs, lambda t: t[order[cut:]]), settings)
        is_sum = torch.allclose(first[0] + rest[0], whole, atol=1e-9)
        assert is_sum, "parts of a batch do not add up: return a sum over tokens, no mean"
        for name, value in metrics.items():
            total = float(first[1][name]) + float(rest[1][name])
            assert abs(total - float(value)) < 1e-9, f"metric {name}: return a sum, no mean"


def check_weights(loss: Formula, settings: LossSettings = SETTINGS) -> None:
    """A mask may be of bool or numbers; half of the weight is half of the loss."""
    inputs = random_inputs()
    total, metrics = loss(inputs, settings)
    for kind in (torch.bool, torch.long, torch.float32):
        same, same_metrics = loss(
            replace(inputs, loss_mask=inputs.loss_mask.to(kind)), settings
        )
        assert same == total and metrics == same_metrics, f"a mask of {kind} changes the loss"
    half, same_metrics = loss(replace(inputs, loss_mask=inputs.loss_mask / 2), settings)
    remedy = "end with batch.tokens.loss_sum(losses)"
    assert torch.isclose(half, total / 2), f"weights of tokens do not count: {remedy}"
    assert metrics == same_metrics, "metrics count each token once, whatever its weight"


def check_nothing_trained(loss: Formula, settings: LossSettings = SETTINGS) -> None:
    """Without a trained token, value, metrics and gradient are 0."""
    inputs = replace(random_inputs(), loss_mask=torch.zeros(3, 5, dtype=torch.double))
    total, metrics = loss(inputs, settings)
    assert total == 0, "without a trained token the loss is 0, not a mean over none"
    assert not any(metrics.values()), "without a trained token every metric is 0"
    assert not gradient(loss, inputs, settings).any(), "without a trained token: no gradient"


PROPERTIES = (
    check_the_gradient,
    check_masked_entries,
    check_nan_shows,
    check_parts_add_up,
    check_weights,
    check_nothing_trained,
)
