"""Losses of several environments in one batch: by hand, and independent of how rows are packed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from example_trainer.advantage.prepare import part_of
from example_trainer.losses.tokens import LossInputs
from example_trainer.model import loading
from example_trainer.model.policy import Scores
from example_trainer.settings.algorithms import Algorithm
from example_trainer.settings.config import TrainingConfig
from example_trainer.update.mixture import loss_parts
from example_trainer.update.step_metrics import StepMetrics
from tests.trainer.rows import row
from tests.trainer.update.test_step import ROWS, difference, step

SEQ_LEN = 64
# Environment of each row, trained tokens: a has 2 + 1 tokens, b has 2.
THREE = [("a", 2), ("b", 2), ("a", 1)]
TWO_LOSSES = {
    "a": {"loss": "grpo", "importance_weight": "none"},
    "b": {"loss": "cross_entropy"},
}


def rows_of(lengths):
    return [row([5], list(range(6, 6 + n)), environment=env) for env, n in lengths]


def padded(values_R_T, dtype):
    width = max(map(len, values_R_T))
    return torch.tensor([v + [0.0] * (width - len(v)) for v in values_R_T], dtype=dtype)


def mixed(cfg, rows, log_R_T, old_R_T, advantages_R_T, microbatches, dtype=torch.float64):
    """Loss, its gradient by row, and metrics, accumulated over micro-batches of places."""
    parts = loss_parts(cfg, rows, SEQ_LEN)
    weights_R_T = [[] for _ in rows]
    for part in parts:
        for place, weights in zip(part.places, part.weights(None)):
            weights_R_T[place] = weights
    total, gradients_R, sums = 0.0, {}, StepMetrics()
    for places in microbatches:

        def pick(values_R_T, places=places):
            return padded([values_R_T[i] for i in places], dtype)

        logprobs = pick(log_R_T).requires_grad_()
        mask = pick([[1.0] * len(row.trained) for row in rows]) > 0
        old = pick(old_R_T)
        batch = LossInputs(logprobs, old, old, pick(advantages_R_T), pick(weights_R_T))
        scores = Scores(logprobs, torch.zeros_like(logprobs), mask)
        for part in parts:
            loss = part.add_loss(places, batch, scores, None, sums) / part.divisor
            loss.backward()
            total += loss.item()
        for b, i in enumerate(places):
            gradients_R[i] = logprobs.grad[b, : len(rows[i].trained)].tolist()
    return total, [gradients_R[i] for i in range(len(rows))], sums.means()


@pytest.mark.parametrize(
    ("mixing", "share_a", "share_b"),
    [("tokens", 3 / 5, 2 / 5), ("sequences", 2 / 3, 1 / 3), ("environments", 1, 1)],
)
def test_two_losses_by_hand(mixing, share_a, share_b):
    """a: -min(r A, clip(r) A) over 3 tokens, weight 2; b: -log p over 2 tokens, weight 1.

    r = e^0.5 = 1.65 is beyond 1.2: with A = 1 the loss is -1.2 without a gradient, with A = -1
    it is r, whose gradient on log p is r. r = 1 has the loss and the gradient -A.
    """
    cfg = TrainingConfig(
        model_name="m",
        mixing=mixing,
        algorithms={"a": {**TWO_LOSSES["a"], "weight": 2.0}, "b": TWO_LOSSES["b"]},
    )
    rows = rows_of(THREE)
    r = math.exp(0.5)
    old = [[-1.5, -2.0], [-9.0, -9.0], [-1.5]]
    new = [[-1.0, -2.0], [-0.5, -0.25], [-1.0]]
    advantages = [[1.0, 1.0], [7.0, 7.0], [-1.0]]
    loss, gradients, metrics = mixed(cfg, rows, new, old, advantages, [[0, 1, 2]])
    own_a, own_b = (-1.2 - 1.0 + r) / 3, (0.5 + 0.25) / 2
    assert loss == pytest.approx(2 * share_a * own_a + share_b * own_b, abs=1e-12)
    a, b = 2 * share_a / 3, share_b / 2
    assert gradients[0] == pytest.approx([0.0, -a], abs=1e-12)
    assert gradients[1] == pytest.approx([-b, -b], abs=1e-12)
    assert gradients[2] == pytest.approx([a * r], abs=1e-12)
    # Of three tokens of a one is beyond its clip; b has no clip and does not count.
    assert metrics["clip_ratio"] == metrics["clip_ratio/a"] == pytest.approx(1 / 3)
    assert "clip_ratio/b" not in metrics


LOSSES = [
    {"loss": "grpo"},
    {"loss": "gspo", "loss_aggregation": "sequence"},
    {"loss": "sapo", "loss_aggregation": "constant", "aggregation_length": 7},
    {"loss": "cross_entropy"},
    {"loss": "reinforce", "importance_level": "sequence"},
    {"loss": "dppo"},
]
NUMBERS = st.floats(-3, -0.1).map(lambda x: round(x, 3))


@st.composite
def mixtures(draw):
    lengths = draw(
        st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 4)), min_size=1)
    )
    algorithms = {name: draw(st.sampled_from(LOSSES)) for name in "ab"}
    weight = draw(st.sampled_from([0.5, 1.0, 3.0]))
    cfg = TrainingConfig(
        model_name="m",
        mixing=draw(st.sampled_from(["tokens", "sequences", "environments", None])),
        algorithms={"a": {**algorithms["a"], "weight": weight}, "b": algorithms["b"]},
    )
    values = [
        [draw(st.lists(NUMBERS, min_size=n, max_size=n)) for _, n in lengths] for _ in range(3)
    ]
    order = draw(st.permutations(range(len(lengths))))
    cuts = sorted(draw(st.sets(st.integers(1, len(lengths)))) | {len(lengths)})
    microbatches = [list(order[start:end]) for start, end in zip([0, *cuts], cuts)]
    return cfg, rows_of(lengths), values, [places for places in microbatches if places]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=40, deadline=None)
@given(mixture=mixtures())
def test_loss_and_gradient_do_not_depend_on_order_and_microbatches(dtype, mixture):
    cfg, rows, (new, old, advantages), microbatches = mixture
    whole = mixed(cfg, rows, new, old, advantages, [list(range(len(rows)))], dtype)
    apart = mixed(cfg, rows, new, old, advantages, microbatches, dtype)
    bound = 1e-12 if dtype == torch.float64 else 1e-6
    scale = max([abs(x) for row_T in whole[1] for x in row_T] + [abs(whole[0]), 1.0])
    assert apart[0] == pytest.approx(whole[0], abs=bound * scale)
    for ours, theirs in zip(apart[1], whole[1]):
        assert ours == pytest.approx(theirs, abs=bound * scale)
    # The order of the rows of the batch decides nothing either.
    order = [place for places in microbatches for place in places]

    def permuted(values):
        return [values[i] for i in order]

    everywhere = [list(range(len(rows)))]
    turned = mixed(cfg, *map(permuted, (rows, new, old, advantages)), everywhere, dtype)
    assert turned[0] == pytest.approx(whole[0], abs=bound * scale)
    for ours, i in zip(turned[1], order):
        assert ours == pytest.approx(whole[1][i], abs=bound * scale)


# --- through a real model ---------------------------------------------------------------


def in_environments(*names):
    def put(prepared):
        prepared.rows = [replace(r, environment=n) for r, n in zip(prepared.rows, names)]

    return put


MIXED = in_environments("a", "b", "a", "other")
SETTINGS = {"lr": 1.0, "max_grad_norm": 1e9}


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_equal_algorithms_are_one_algorithm(config, aggregation):
    own = {**SETTINGS, "loss_aggregation": aggregation, "entropy_coef": 0.01}
    told, plain = step(config(**own))
    told_mixed, parted = step(config(**own, algorithms={"a": {}, "b": {}}), also=MIXED)
    assert told_mixed["loss"] == pytest.approx(told["loss"], abs=1e-6)
    assert difference(plain, parted) < 1e-6
    assert {"loss/a", "loss/b", "loss/rest", "approx_kl/a"} < set(told_mixed) - set(told)


def test_named_algorithms_without_their_rows_change_no_bit(config):
    told, plain = step(config(**SETTINGS))
    told_too, same = step(config(**SETTINGS, algorithms={"a": {"loss": "cispo"}}))
    assert told_too["loss"] == told["loss"] and difference(plain, same) == 0.0


def test_the_step_is_that_of_two_runs_mixed_by_count(config):
    """Tokens of a: 2 + 6, of b: 4 + 9; steps of plain SGD add up like gradients."""
    names = ("a", "b", "a", "b")
    own = {"a": {"loss": "gspo"}, "b": {"loss": "cross_entropy"}}

    def change(cfg, also):
        start = [p.detach().clone() for p in loading.load_policy(cfg).parameters()]
        told, after = step(cfg, also=also)
        return told, [a - b for a, b in zip(after, start)]

    def only(name):
        def drop(prepared):
            kept = part_of(prepared, [i for i, env in enumerate(names) if env == name])
            prepared.rows, prepared.advantages_R_T = kept.rows, kept.advantages_R_T

        return drop

    both = {**SETTINGS, "algorithms": own}
    told, mixture = change(config(**both), in_environments(*names))
    told_a, change_a = change(config(**SETTINGS, **own["a"]), only("a"))
    told_b, change_b = change(config(**SETTINGS, **own["b"]), only("b"))
    expected = [(8 * a + 13 * b) / 21 for a, b in zip(change_a, change_b)]
    assert difference(mixture, expected) < 1e-6
    assert told["loss/a"] == pytest.approx(told_a["loss"], abs=1e-6)
    assert told["loss/b"] == pytest.approx(told_b["loss"], abs=1e-6)
    assert told["loss"] == pytest.approx(
        (8 * told_a["loss"] + 13 * told_b["loss"]) / 21, abs=1e-6
    )


def test_a_mixture_does_not_depend_on_packing_and_microbatches(config):
    own = {
        **SETTINGS,
        "mixing": "environments",
        "algorithms": {
            "a": {"loss": "m2po", "m2_threshold": 1e-9, "weight": 0.5},
            "b": {"loss": "gspo", "entropy_share": 0.5, "loss_aggregation": "sequence"},
        },
    }
    told, whole = step(config(**own), also=MIXED)
    for more in (
        {"max_tokens_per_microbatch": 12, "share_prefixes": False},
        {"packing": "padded", "share_prefixes": False},
    ):
        told_apart, apart = step(config(**own, **more), also=MIXED)
        assert told["loss"] == pytest.approx(told_apart["loss"], abs=1e-6)
        assert difference(whole, apart) < 1e-5
        for name in ("loss/a", "loss/b", "loss/rest", "filtered_ratio/a"):
            assert told[name] == pytest.approx(told_apart[name], abs=1e-6), name


def test_a_plugin_is_the_loss_of_one_environment(config, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def loss(batch, settings):\n"
        "    losses = -batch.tokens.only(batch.advantages) * batch.tokens.only(batch.logprobs)\n"
        "    return batch.tokens.loss_sum(losses), {'seen': batch.tokens.total(losses * 0 + 1)}\n"
    )
    monkeypatch.chdir(tmp_path)
    own = {"a": {"loss": "mine.py:loss"}, "b": {"loss": "cross_entropy"}}
    told, _ = step(config(**SETTINGS, algorithms=own), also=MIXED)
    assert told["seen"] == told["seen/a"] == 1.0 and "seen/b" not in told


def test_the_kl_of_an_environment_is_its_own_metric(config):
    """Of b only, whose reference is 0.1 nats below: k2 is 0.005 per token."""

    def reference(prepared):
        MIXED(prepared)
        prepared.reference_R_T = [
            [x - 0.1 for x in logprobs] if r.environment == "b" else [0.0] * len(logprobs)
            for r, logprobs in zip(
                prepared.rows,
                [r.behaviour_logprobs[-len(r.trained) :] for r in prepared.rows],
            )
        ]

    own = {"a": {"loss": "reinforce"}, "b": {"kl_coef": 0.5, "kl_estimator": "k2"}}
    told, _ = step(config(**SETTINGS, algorithms=own), also=reference)
    assert told["kl_reference/b"] == pytest.approx(0.005, abs=1e-5)
    assert "kl_reference/a" not in told and "kl_reference/rest" not in told


def test_a_part_names_its_settings():
    cfg = TrainingConfig(model_name="m", algorithms=TWO_LOSSES)
    parts = loss_parts(cfg, [replace(r, environment="a") for r in ROWS], SEQ_LEN)
    assert [(part.name, part.settings.loss, part.share) for part in parts] == [
        ("a", "grpo", 1)
    ]
    assert isinstance(parts[0].settings, Algorithm)


def test_two_ranks_take_the_step_of_one(ranks):
    for found in ranks:
        assert found["mixed"]["weights"] < 1e-5 and found["mixed"]["metrics"] < 1e-5
        assert {"loss/a", "loss/b", "loss/rest", "clip_ratio/a"} <= set(
            found["mixed"]["names"]
        )
