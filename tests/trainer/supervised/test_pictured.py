"""Chats with pictures in training files: the tokens of the server, and pixels in the loss."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from atroposlib.errors import ConfigError
from atroposlib.inference.engine.served_model import load_model
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.testing.tiny_vision import FAMILIES
from atroposlib.wire.images import split_pictures
from example_trainer.data.rows import Row
from example_trainer.model import loading
from example_trainer.settings.config import TrainingConfig
from example_trainer.supervised import corpus, sft
from example_trainer.supervised.pictured import PicturedRow, with_pixels
from tests.trainer.supervised.pairs import metrics
from tests.vision import drawing, image_part, vision_dir

RED, BLUE = drawing("red"), drawing("blue", (64, 48))


def chat(picture, answer):
    asked = {"role": "user", "content": [image_part(picture), {"type": "text", "text": "?"}]}
    return [asked, {"role": "assistant", "content": answer}]


@pytest.fixture(scope="module", params=FAMILIES)
def policy(request, tmp_path_factory):
    directory = vision_dir(tmp_path_factory, request.param)
    return loading.load_policy(TrainingConfig(model_name=str(directory), device="cpu"))


def rows_of(policy, messages):
    return corpus.sft_rows(
        policy.tokenizer, {"messages": messages}, "line 1", reader=policy.pictures
    )


def test_a_row_has_the_prompt_of_the_server_and_only_the_answer_is_trained(
    policy, tmp_path_factory
):
    messages = chat(RED, "red")
    (row,) = rows_of(policy, messages)
    reader = policy.pictures
    shown, pictures = split_pictures(messages[:1])
    prompt, _ = reader.prompt(reader.render(shown, add_generation_prompt=True), pictures)
    assert row.tokens[: len(prompt)] == prompt
    assert policy.tokenizer.decode([row.labels[j] for j in row.trained]) == "red<|end|>"


def test_pixels_are_made_when_a_row_is_trained_and_only_for_rows_with_files(policy):
    (row,) = rows_of(policy, chat(RED, "red"))
    assert isinstance(row, PicturedRow) and row.pictures is None and row.files == (RED,)
    assert with_pixels(row, policy.pictures).pictures.tensors
    text = corpus.row_of([1, 2], [False, True], "line 2")
    assert with_pixels(text, policy.pictures) is text


def test_the_picture_counts_in_the_loss(policy):
    words = [
        with_pixels(rows_of(policy, chat(p, "red"))[0], policy.pictures) for p in (RED, BLUE)
    ]
    first, second = policy.trained_logprobs(words)
    assert len(first) == len(second) and first != second


def test_a_model_of_text_refuses_pictures_and_a_vision_model_an_address(policy):
    with pytest.raises(ConfigError, match="reads text only"):
        corpus.sft_rows(policy.tokenizer, {"messages": chat(RED, "red")}, "line 1")
    far = {"type": "image_url", "image_url": {"url": "https://a.example/i.png"}}
    with pytest.raises(ConfigError, match="a picture is a data URL.*never fetched"):
        rows_of(policy, [{"role": "user", "content": [far]}, chat(RED, "red")[1]])


def test_a_file_of_pictures_is_learned_and_the_model_saved_with_its_processor(
    tmp_path_factory, settings, tmp_path
):
    lines = [{"messages": chat(RED, "red")}, {"messages": chat(BLUE, "blue")}] * 4
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    directory = vision_dir(tmp_path_factory, "llava")
    more = {"model_name": str(directory), "seq_len": 128, "valid_file": str(path)}
    sft.train_sft(sft.SftConfig(**settings(path, **more)))
    rows = metrics(tmp_path)
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["valid/loss"] < rows[0]["loss"]
    assert load_model(str(tmp_path / "saved" / "final_model")).reader is not None


def test_a_pictured_row_keeps_every_field_of_its_row(policy):
    assert {field.name for field in fields(PicturedRow)} - {f.name for f in fields(Row)} == {
        "files"
    }


@pytest.mark.parametrize("kind", ["image", "input_image", "source"])
def test_pictures_in_the_form_of_other_apis_give_the_same_row(policy, kind):
    url = image_part(RED)["image_url"]["url"]
    part = {
        "image": {"type": "image", "image": url},
        "input_image": {"type": "input_image", "image_url": url},
        "source": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": url[22:]},
        },
    }[kind]
    messages = chat(RED, "red")
    messages[0]["content"][0] = part
    assert rows_of(policy, messages) == rows_of(policy, chat(RED, "red"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            [{"type": "image"}, {"type": "text", "text": "?"}],
            r"messages\[0\].content: a picture",
        ),
        ([{"type": "image", "image": "a.png"}], "never fetched"),
        ([{"type": "input_audio", "input_audio": {}}], "'input_audio' is not text"),
        (5, "a string or a list of parts"),
    ],
)
def test_parts_without_tokens_are_refused_and_not_left_out(policy, content, problem):
    messages = chat(RED, "red")
    messages[0]["content"] = content
    with pytest.raises(ConfigError, match=problem):
        rows_of(policy, messages)


def test_parts_of_text_are_the_text_and_not_the_list():
    tokenizer = char_tokenizer()
    parts = [{"type": "text", "text": "wha"}, {"type": "text", "text": "t"}]
    rows = [
        corpus.sft_rows(
            tokenizer,
            {
                "messages": [
                    {"role": "user", "content": content},
                    {"role": "assistant", "content": "yes"},
                ]
            },
            "line 1",
        )
        for content in (parts, "what")
    ]
    assert rows[0] == rows[1]
