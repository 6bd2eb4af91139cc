"""Pictures: a server that reads the PNG answers truthfully, through every way to the model."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter

import pytest

from atroposlib.environments.library.pictures import (
    COLOURS,
    gold,
    is_right,
    picture,
    pictures,
    text,
)
from atroposlib.envs import environment
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.function_env.card import play
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.generation.chat.pictures import pictures_in
from atroposlib.generation.routing.manager import backend_for
from atroposlib.generation.sessions.dummy import ALLOW_VARIABLE
from atroposlib.testing.fake_inference import PICTURE, FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET, write_tiny_model
from tests.serving import served
from tests.ui.rendered import rendered

Image = pytest.importorskip("PIL.Image")


def shapes_in(data):
    """(kind, colour) of each connected area that is not white, by the share of its box."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    pixels = {
        (x, y): colour
        for x in range(image.width)
        for y in range(image.height)
        if (colour := bytes(image.getpixel((x, y)))) != b"\xff\xff\xff"
    }
    names, found = {rgb: name for name, rgb in COLOURS.items()}, []
    while pixels:
        start, colour = pixels.popitem()
        area, edge = {start}, [start]
        while edge:
            x, y = edge.pop()
            for near in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if pixels.pop(near, None):
                    area.add(near)
                    edge.append(near)
        wide, high = (max(v) - min(v) + 1 for v in zip(*area))
        share = len(area) / (wide * high)
        kind = "square" if share > 0.9 else "circle" if share > 0.7 else "triangle"
        found.append((kind, names[colour]))
    return found


def answer_to(prompt, data):
    found = shapes_in(data)
    if one := re.search(r"Which colour has the only (\w+)\?", prompt):
        return dict(found)[one[1]]
    if one := re.search(r"How many shapes are (\w+)\?", prompt):
        return Counter(colour for _, colour in found)[one[1]]
    colour, kind = re.search(r"How many (?:(\w+) )?(\w+)s are there\?", prompt).groups()
    return sum(one[0] == kind and colour in (None, one[1]) for one in found)


class Seeing(FakeInference):
    """A server that decodes the picture of the last message and answers what is asked."""

    def _chat(self, body):
        url = pictures_in(body["messages"])[-1]
        data = base64.b64decode(url.partition(",")[2])
        self.reply = lambda prompt, i: f"<answer>{answer_to(prompt, data)}</answer>"
        return super()._chat(body)


@pytest.fixture
def seeing():
    with Seeing().running() as url:
        yield url


def serve_from(env, url, server_type):
    config = APIServerConfig(base_url=f"{url}/v1", server_type=server_type, model_name="fake")
    env.server.servers[:] = [backend_for(server_type)(config)]


async def test_process_scores_truthful_answers_and_keeps_the_pictures(
    make_env, groups_made, seeing, tmp_path
):
    env = make_env(pictures, seeing, tasks=8, group_size=2)
    groups = await groups_made(env, 3)
    for group in groups:
        assert group["scores"] == [1.0, 1.0]
        [url] = {url for row in group["images"] for url in row}
        assert group["messages"][0][0]["content"][0]["image_url"]["url"] == url
        text = env.tokenizer.decode(group["tokens"][0])
        assert PICTURE in text and "<answer>" in text
        assert all(logprob < 0 for logprob in group["inference_logprobs"][0][-3:])
    file = tmp_path / "groups.html"
    assert file.read_text().count('"data:image/png;base64,') == 3  # a prompt is held once
    for drawn in rendered(file, *(f"#/group/{number}" for number in range(3))):
        assert drawn.tags["img"] == 1
        assert not [address for address in drawn.addresses if address.startswith("http")]


async def test_evaluate_measures_a_server_that_returns_text_only(make_env, evaluated, seeing):
    env = make_env(pictures, seeing, tasks=8, eval_fraction=0.5)
    serve_from(env, seeing, "openai")
    metrics, samples = await evaluated(env)
    assert metrics["reward"] == 1.0 and metrics["failed"] == 0 and samples
    assert "data:image/png" in json.dumps(samples[0]["prompt"])


@environment([{"id": "one"}], max_tokens=64)
async def agent(task, model):
    """An agent with its own client."""
    url = picture({"shapes": [["circle", "red", 50, 50, 20]]})
    parts = [{"type": "text", "text": "How many red circles are there?"}]
    parts += [{"type": "image_url", "image_url": {"url": url}}]
    asked = [{"role": "user", "content": parts}]
    async with await model.openai() as client:
        reply = await client.chat.completions.create(model="any", messages=asked)
    return reply.choices[0].message.content == "<answer>1</answer>"


@pytest.mark.parametrize("server_type", ["vllm", "openai"])
async def test_agents_send_pictures_through_their_endpoint(
    make_env, groups_made, seeing, monkeypatch, tmp_path, server_type
):
    monkeypatch.setenv(ALLOW_VARIABLE, "1")  # placeholder tokens of the text-only server
    env = make_env(agent, seeing, group_size=2)
    serve_from(env, seeing, server_type)
    [group] = await groups_made(env, 1)
    assert group["scores"] == [1.0, 1.0] and len(group["images"][0]) == 1
    [drawn] = rendered(tmp_path / "groups.html", "#/group/0")
    assert drawn.tags["img"] >= 1


@pytest.mark.parametrize("url", ["https://pictures.example/a.png", "file:///etc/passwd"])
async def test_an_address_ends_the_command_at_once_and_is_not_sent(make_env, groups_made, url):
    @environment([{"id": f"{i}"} for i in range(64)])
    async def linked(task, model):
        part = {"type": "image_url", "image_url": {"url": url}}
        await model.chat([{"role": "user", "content": [part]}])
        return 1.0

    fake = FakeInference()
    with fake.running() as address:
        with pytest.raises(OnlyFailures, match=r"messages\[0\].content.*never fetched"):
            await groups_made(make_env(linked, address, group_size=2), 9)
    assert not fake.requests


@pytest.mark.slow
@pytest.mark.parametrize("server_type", ["vllm", "openai"])
async def test_a_server_for_text_ends_the_command_with_its_refusal(
    make_env, groups_made, tmp_path, monkeypatch, server_type
):
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app

    monkeypatch.setenv(ALLOW_VARIABLE, "1")
    directory = write_tiny_model(tmp_path / "tiny", alphabet=ASCII_ALPHABET)
    engine = Engine(load_model(str(directory), name="fake"), EngineLimits(), seed=0)
    engine.start()
    with served(create_app(engine)) as url:
        env = make_env(pictures, url, tasks=64, group_size=2)
        serve_from(env, url, server_type)
        with pytest.raises(OnlyFailures, match="400.*image_url.*reads text only"):
            await groups_made(env, 9)
    engine.close()
    assert env._atropos.pool.started == 2  # the two probes, not the data set


def test_scans_of_digits_come_from_the_wheel_of_scikit_learn():
    pytest.importorskip("sklearn")
    found = pictures.definition.dataset(pictures.env_config_cls(source="digits", tasks=50))
    assert [task["id"] for task in found[:2]] == ["digit/0", "digit/1"]
    assert {task["answer"] for task in found} == set("0123456789")
    image = Image.open(io.BytesIO(base64.b64decode(picture(found[0]).partition(",")[2])))
    assert image.size == (96, 96) and len({*image.convert("L").get_flattened_data()}) > 5


def test_one_shape_fills_a_small_drawing_and_is_answered_by_its_colour_alone():
    found = pictures.definition.dataset(pictures.env_config_cls(source="one", tasks=60))
    assert {task["answer"] for task in found} == {*COLOURS}
    for task in found:
        data = base64.b64decode(picture(task).partition(",")[2])
        assert Image.open(io.BytesIO(data)).size == (32, 32)
        [(_, colour)] = shapes_in(data)
        assert is_right(task, f" {colour.upper()} ") and not is_right(task, f"a {colour}")
        assert "<answer>" not in text(task)


@pytest.mark.parametrize("source", ["one", "shapes"])
def test_a_blank_picture_has_the_question_and_nothing_to_see(source):
    config = pictures.env_config_cls(source=source, tasks=4, blank=True)
    plain = pictures.env_config_cls(source=source, tasks=4)
    for task, same in zip(*map(pictures.definition.dataset, (config, plain))):
        image = Image.open(io.BytesIO(base64.b64decode(picture(task).partition(",")[2])))
        assert image.getcolors() == [(image.width * image.height, (255, 255, 255))]
        assert text(task) == text(same) and task["answer"] == same["answer"]
        assert picture(same) != picture(task)


@pytest.mark.parametrize("source", ["shapes", "one"])
async def test_gold_replies_are_right_with_and_without_tags(source):
    config = pictures.env_config_cls(source=source, tasks=3)
    for task in pictures.definition.dataset(config):
        reward, _ = await play(pictures, task, gold(task), source=source)
        assert reward.score == 1.0
