"""Rows with pictures in the trainer: logprobs, gradients, and steps on models of two kinds."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError
from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.inference.engine.served_model import load_model
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.testing.tiny_vision import FAMILIES
from atroposlib.wire import ScoredData
from atroposlib.wire.images import picture_bytes
from example_trainer.data.rows import at_trained
from example_trainer.learner import Learner, training_rows
from example_trainer.model.scoring import inputs_of
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights.verify import choose_rows
from tests.inference.conftest import make_engine  # noqa: F401
from tests.inference.helpers import generate
from tests.vision import data_url, drawing, vision_dir

EXACT = 1e-4
RED, BLUE = drawing("red"), drawing("blue", (64, 48))
SAMPLED = {"generation_params": {"temperature": 1.0}}


@pytest.fixture(scope="module", params=FAMILIES)
def model_dir(request, tmp_path_factory):
    return vision_dir(tmp_path_factory, request.param)


@pytest.fixture
def learner(model_dir):
    def make(**settings):
        options = {"device": "cpu", "optimizer": "adamw", "lr": 1e-2, "seq_len": 128}
        return Learner(TrainingConfig(**{"model_name": str(model_dir), **options, **settings}))

    return make


@pytest.fixture
def group(make_engine, model_dir):  # noqa: F811
    """Rows as the local server samples them: no picture, one, and two of unequal size."""
    engine = make_engine(model_dir)
    reader, tokenizer = engine.served.reader, engine.served.tokenizer
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [(tokenizer.encode("hello", add_special_tokens=False), None, [])]
    for pictures in ([RED], [BLUE], [BLUE, RED]):
        parts = [*({"type": "image"} for _ in pictures), {"type": "text", "text": "?"}]
        text = reader.render([{"role": "user", "content": parts}], add_generation_prompt=True)
        ids, inputs = reader.prompt(text, pictures)
        prompts.append((ids, inputs, [data_url(picture) for picture in pictures]))
    requests = [
        GenerationRequest(prompt_ids=ids, pictures=inputs, n=2, params=params)
        for ids, inputs, _ in prompts
    ]
    tokens, masks, logprobs, images = [], [], [], []
    for (ids, _, urls), result in zip(prompts, generate(engine, *requests)):
        for output in result.outputs:
            tokens.append(ids + output.tokens)
            masks.append([-100] * len(ids) + output.tokens)
            logprobs.append([1.0] * len(ids) + output.logprobs)
            images.append(urls)
    return ScoredData(
        tokens=tokens,
        masks=masks,
        scores=[float(g % 2) for g in range(len(tokens))],
        inference_logprobs=logprobs,
        images=images,
        **SAMPLED,
    )


@pytest.mark.parametrize(
    "settings", [{}, {"packing": "padded"}, {"max_tokens_per_microbatch": 64}]
)
def test_logprobs_are_those_of_the_server_for_rows_with_and_without_pictures(
    learner, group, settings
):
    ours = learner(**settings)
    batch = training_rows([group], ours.cfg, ours.policy, ours.state)
    assert [row.pictures is not None for row in batch.rows] == [False] * 2 + [True] * 6
    for row, logprobs in zip(batch.rows, ours.policy.trained_logprobs(batch.rows)):
        sampled = at_trained(row, row.behaviour_logprobs)
        assert max(abs(a - b) for a, b in zip(logprobs, sampled)) < EXACT
        if row.pictures is not None:
            assert not set(at_trained(row, row.labels)) & row.pictures.token_ids


def gradients(policy, rows):
    policy.module.zero_grad()
    for microbatch in policy.plan(rows):
        policy.score(microbatch).logprobs.sum().backward()
    return {
        name: parameter.grad
        for name, parameter in policy.model.named_parameters()
        if parameter.grad is not None
    }


def test_the_gradient_reaches_the_vision_tower_and_is_that_of_single_rows(learner, group):
    ours = learner()
    rows = training_rows([group], ours.cfg, ours.policy, ours.state).rows
    whole = {name: grad.clone() for name, grad in gradients(ours.policy, rows).items()}
    vision = [name for name in whole if "vision" in name or "visual" in name]
    assert vision and any(whole[name].abs().max() > 1e-4 for name in vision)
    summed: dict[str, torch.Tensor] = {}
    for row in rows:
        for name, grad in gradients(ours.policy, [row]).items():
            summed[name] = summed.get(name, 0) + grad.clone()
    for name, grad in whole.items():
        assert torch.allclose(grad, summed[name], rtol=1e-3, atol=1e-4), name


def test_a_step_prefers_the_rewarded_replies_to_a_picture(learner, group):
    ours = learner(lr=3e-3)
    first = ours.step([group])
    for _ in range(3):
        last = ours.step([group])
    assert last["pos_logp"] > first["pos_logp"] and last["neg_logp"] < first["neg_logp"]
    assert "dropped_images" not in first or not first["dropped_images"]


def test_chosen_layers_train_and_the_vision_tower_stays(learner, group):
    ours = learner(train_layer_indices=[1])
    before = {n: p.detach().clone() for n, p in ours.policy.model.named_parameters()}
    ours.step([group])
    changed = {
        n for n, p in ours.policy.model.named_parameters() if not torch.equal(before[n], p)
    }
    assert changed and all("layers.1." in name for name in changed)
    assert not any("vision" in name or "visual" in name for name in changed)


def test_a_frozen_vision_tower_stays_to_the_bit_and_the_language_model_learns(learner, group):
    tower = (
        "*visual*" if learner().policy.model.config.model_type == "qwen2_vl" else "*vision_*"
    )
    ours = learner(freeze=[tower])
    before = {n: p.detach().clone() for n, p in ours.policy.model.named_parameters()}
    ours.step([group])
    same = {n for n, p in ours.policy.model.named_parameters() if torch.equal(before[n], p)}
    towers = {n for n in before if "vision_" in n or "visual" in n}
    assert towers <= same and any("language_model" in name for name in before.keys() - same)


def test_a_saved_model_serves_and_trains_pictures_again(learner, group, tmp_path):
    ours = learner()
    ours.step([group])
    again = load_model(str(ours.save(tmp_path / "saved")))
    assert again.reader is not None
    rows = training_rows([group], ours.cfg, ours.policy, ours.state).rows
    other = learner(model_name=str(tmp_path / "saved"))
    for a, b in zip(ours.policy.trained_logprobs(rows), other.policy.trained_logprobs(rows)):
        assert torch.allclose(torch.tensor(a), torch.tensor(b), atol=1e-5)


def test_a_row_with_fewer_placeholders_is_left_out_and_the_rest_trains(learner, group):
    ours = learner()
    token = next(iter(ours.policy.pictures.token_ids))
    place = group.tokens[2].index(token)
    for values in (group.tokens, group.masks, group.inference_logprobs):
        del values[2][place]
    metrics = ours.step([group])
    assert metrics["dropped_pictures"] == 1 and metrics["grad_norm"] > 0


@pytest.mark.parametrize("images", ["no images", "of the first rows alone"])
def test_rows_whose_images_were_not_sent_are_left_out_and_named(learner, group, images):
    ours = learner()
    group.images = None if images == "no images" else group.images[:2]
    batch = training_rows([group], ours.cfg, ours.policy, ours.state)
    assert len(batch.rows) == 2 and batch.counts["dropped_pictures"] == 6
    (note,) = batch.notes  # of six rows
    assert note.startswith("images[2] of group #0 of environment unnamed:")
    assert note.endswith("without its images; the row is left out")
    assert ours.step([group])["grad_norm"] > 0


def test_a_model_of_text_leaves_the_group_out_and_refuses_rows_with_pictures(
    learner, group, tmp_path
):
    ours = learner()
    rows = training_rows([group], ours.cfg, ours.policy, ours.state).rows
    text = Learner(
        TrainingConfig(model_name=str(write_tiny_model(tmp_path / "text")), device="cpu")
    )
    batch = training_rows([group], text.cfg, text.policy, text.state)
    assert not batch.rows and batch.counts["dropped_images"] == 8
    with pytest.raises(ConfigError, match="reads no pictures"):
        text.policy.trained_logprobs(rows)


def test_servers_are_checked_on_the_text_of_a_row(learner, group):
    ours = learner()
    rows = training_rows([group], ours.cfg, ours.policy, ours.state).rows
    chosen = choose_rows(rows, 8)
    assert len(chosen) == 8
    for row in rows:
        text = [t for t in row.tokens if not row.pictures or t not in row.pictures.token_ids]
        assert text in chosen


def test_pixels_of_a_pass_are_those_of_its_rows_in_order(learner, group):
    ours = learner()
    rows = training_rows([group], ours.cfg, ours.policy, ours.state).rows
    for microbatch in ours.policy.plan(rows):
        inputs = inputs_of(microbatch, ours.policy.device)
        if not microbatch.pictures:
            assert inputs.pictures is None
            continue
        expected = [rows[i].pictures.tensors["pixel_values"] for i in microbatch.row_ids]
        assert torch.equal(inputs.pictures["pixel_values"], torch.cat(expected))


def test_equal_pictures_of_a_group_are_decoded_once(learner, group, monkeypatch):
    ours = learner()
    rows = training_rows([group], ours.cfg, ours.policy, ours.state).rows
    tensors = [row.pictures.tensors for row in rows if row.pictures is not None]
    assert tensors[0] is tensors[1] and tensors[2] is tensors[3]
    assert picture_bytes(group.images[2][0]) == RED
