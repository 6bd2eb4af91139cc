"""Pictures as inputs of models of two kinds: rotation by three axes, and plain positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoConfig, AutoModelForImageTextToText

from atroposlib.errors import PictureError
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.testing.tiny_vision import FAMILIES
from atroposlib.utils.models import vision
from atroposlib.utils.models.vision import (
    MAX_PICTURES,
    PictureInputs,
    language_model_class,
    picture_reader,
)
from tests.examples import examples
from tests.vision import drawing, vision_dir

pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, tmp_path_factory):
    directory = vision_dir(tmp_path_factory, request.param)
    model = AutoModelForImageTextToText.from_pretrained(directory).eval()
    return directory, model, picture_reader(str(directory), model)


def asked(reader, *parts):
    """A prompt of parts: a text, or a picture as bytes."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
        for part in parts
    ]
    text = reader.render([{"role": "user", "content": content}], add_generation_prompt=True)
    return reader.prompt(text, [part for part in parts if isinstance(part, bytes)])


def test_a_prompt_and_its_tokens_give_equal_inputs(loaded):
    _, _, reader = loaded
    pictures = [drawing("red"), drawing("blue", (64, 48))]
    ids, inputs = asked(reader, "left ", pictures[0], " right ", pictures[1], " ?")
    again = reader.inputs(ids, pictures)
    assert again.digest == inputs.digest and again.shift == inputs.shift
    assert again.tensors.keys() == inputs.tensors.keys()
    for name, value in inputs.tensors.items():
        assert torch.equal(again.tensors[name], value)
    assert torch.equal(again.positions_up_to(len(ids)), inputs.positions_up_to(len(ids)))


def test_positions_go_on_as_the_model_itself_counts_them(loaded):
    _, model, reader = loaded
    ids, inputs = asked(reader, drawing("green"), "what is it?")
    longer = [*ids, 7, 8, 9]
    kinds = torch.tensor([[token in reader.token_ids for token in longer]]).int()
    if not hasattr(model.base_model, "get_rope_index"):
        assert inputs.positions is None and inputs.shift == 0
        assert inputs.positions_up_to(len(longer)).tolist() == [list(range(len(longer)))]
        return
    own, shift = model.base_model.get_rope_index(
        torch.tensor([longer]),
        mm_token_type_ids=kinds,
        image_grid_thw=inputs.tensors["image_grid_thw"],
    )
    assert inputs.shift == int(shift) < 0
    assert torch.equal(inputs.positions_up_to(len(longer)), own[:, 0])


@examples(30)
@given(known=st.integers(0, 6), length=st.integers(0, 12), shift=st.integers(-5, 0))
def test_tokens_after_the_prompt_have_their_index_and_the_shift(known, length, shift):
    positions = torch.arange(known).expand(3, -1) * 2
    inputs = PictureInputs(b"", {}, positions, shift, frozenset())
    found = inputs.positions_up_to(length)
    assert found.shape == (3, length)
    assert found[:, :known].tolist() == positions[:, :length].tolist()
    assert found[0, known:].tolist() == [i + shift for i in range(known, length)]


def test_tokens_of_another_number_of_placeholders_are_refused_with_both_numbers(loaded):
    _, _, reader = loaded
    ids, _ = asked(reader, drawing("red"), "?")
    place = next(i for i, token in enumerate(ids) if token in reader.token_ids)
    count = sum(token in reader.token_ids for token in ids)
    with pytest.raises(PictureError, match=f"take {count} placeholder.*has {count - 1}"):
        reader.inputs(ids[:place] + ids[place + 1 :], [drawing("red")])


def test_a_place_without_a_picture_and_too_many_pictures_are_refused(loaded):
    _, _, reader = loaded
    text = reader.render([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(PictureError, match="refuses"):
        reader.prompt(text, [drawing("red"), drawing("red")])
    with pytest.raises(PictureError, match=f"at most {MAX_PICTURES}"):
        reader.prompt(text, [drawing("red")] * (MAX_PICTURES + 1))


def test_pixel_tensors_are_kept_by_digest_and_bounded(loaded, monkeypatch):
    _, _, reader = loaded
    monkeypatch.setattr(vision, "KEPT", 2)
    pictures = [drawing(colour) for colour in ("red", "blue", "green")]
    prompts = [asked(reader, picture)[0] for picture in pictures]
    first = reader.inputs(prompts[0], [pictures[0]])
    assert reader.inputs(prompts[0], [pictures[0]]).tensors is first.tensors
    for ids, picture in zip(prompts[1:], pictures[1:]):
        reader.inputs(ids, [picture])
    assert len(reader._kept) == 2
    assert reader.inputs(prompts[0], [pictures[0]]).tensors is not first.tensors


def test_pictures_of_a_sequence_are_bounded_together(loaded, monkeypatch):
    _, _, reader = loaded
    monkeypatch.setattr(vision, "MAX_SEQUENCE_PIXELS", 2 * 40 * 24)
    assert asked(reader, drawing("red"), drawing("blue"))
    with pytest.raises(PictureError, match="have over 1920 pixels"):
        asked(reader, drawing("red"), drawing("blue"), drawing("green"))


def test_pictures_in_another_order_than_their_places_are_refused(loaded):
    _, _, reader = loaded
    pictures = [drawing("red"), drawing("blue", (64, 48))]
    ids, _ = asked(reader, *pictures)
    assert reader.inputs(ids, pictures) is not None
    if hasattr(reader._processor.image_processor, "crop_size"):
        return  # squares of a fixed size: every order has the same places
    with pytest.raises(PictureError, match="in another order than in its prompt"):
        reader.inputs(ids, pictures[::-1])


def test_places_without_a_picture_are_refused_and_a_word_of_a_question_is_not(loaded):
    _, _, reader = loaded
    ids, _ = asked(reader, drawing("red"), "?")
    with pytest.raises(PictureError, match="without its images"):
        reader.inputs(ids, [])
    token = next(iter(reader.token_ids))
    assert reader.inputs([5, token, 6, token], []) is None


@examples(50)
@given(st.lists(st.sampled_from([1, 2, 3])))
def test_runs_are_the_lengths_of_neighbouring_placeholders(ids):
    runs = vision.runs_of(ids, frozenset({2, 3}))
    assert sum(runs) == sum(i > 1 for i in ids) and all(runs)
    assert len(runs) == sum(a > 1 and b == 1 for a, b in zip(ids, [*ids[1:], 1]))


def test_a_model_of_text_has_no_reader_and_keeps_its_class(tmp_path):
    from transformers import AutoModelForCausalLM

    directory = write_tiny_model(tmp_path, num_layers=1, hidden_size=16)
    kind = language_model_class(AutoConfig.from_pretrained(directory))
    assert kind is AutoModelForCausalLM
    assert picture_reader(str(directory), kind.from_pretrained(directory)) is None


def test_a_model_without_the_files_of_its_processor_reads_text(loaded, tmp_path, caplog):
    directory, model, _ = loaded
    model.config.save_pretrained(tmp_path)
    assert picture_reader(str(tmp_path), model) is None
    assert "reads text only" in caplog.text
    assert picture_reader(str(directory), model) is not None


def test_without_pillow_the_model_reads_text_and_the_warning_names_the_extra(
    loaded, caplog, monkeypatch
):
    directory, model, _ = loaded
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    assert picture_reader(str(directory), model) is None
    assert "atropos-rl[pictures]" in caplog.text


def test_a_saved_reader_is_the_same_reader(loaded, tmp_path):
    _, model, reader = loaded
    reader.save_pretrained(tmp_path)
    ids, inputs = asked(picture_reader(str(tmp_path), model), drawing("red"), "?")
    expected, own = asked(reader, drawing("red"), "?")
    assert ids == expected and torch.equal(
        inputs.tensors["pixel_values"], own.tensors["pixel_values"]
    )
