"""Evaluations as scripts: averages, failures counted apart, files, and the command line."""

from __future__ import annotations

import asyncio
import json
from itertools import combinations
from math import comb, inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.eval import EvalBase, eval_runner, evaluate_log, pass_at_k
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.generation.engines.harness import ServerHarness, create_chat_completion
from tests.envs.words import CLASS_WAYS, foreign_words


@pytest.mark.parametrize(
    ("m", "c", "k", "chance"),
    [
        (1, 1, 1, 1.0),
        (1, 0, 1, 0.0),
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 2, 2, 5 / 6),
        (5, 4, 2, 1.0),
        (10, 0, 10, 0.0),
    ],
)
def test_pass_at_k_by_hand(m, c, k, chance):
    assert pass_at_k(m, c, k) == pytest.approx(chance)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one(m, data):
    c, k = data.draw(st.integers(0, m)), data.draw(st.integers(1, m))
    right = sum(min(draw) < c for draw in combinations(range(m), k))
    assert pass_at_k(m, c, k) == pytest.approx(right / comb(m, k))


@pytest.mark.parametrize("whole", [float, np.int64, np.float64])
def test_pass_at_k_takes_whole_numbers_of_any_type(whole):
    assert pass_at_k(whole(4), whole(2), whole(1)) == 0.5


@pytest.mark.parametrize("c", [1.5, nan, inf])
def test_pass_at_k_of_a_part_of_a_sample_is_an_error(c):
    with pytest.raises(ValueError, match="whole numbers"):
        pass_at_k(4, c, 1)


@pytest.mark.parametrize(("m", "c", "k"), [(1, 2, 1), (1, -1, 1), (1, 0, 0), (1, 0, 2)])
def test_pass_at_k_of_impossible_counts_is_an_error(m, c, k):
    with pytest.raises(ValueError, match="is impossible"):
        pass_at_k(m, c, k)


class Sums(EvalBase):
    """Items are numbers; even ones are right, and a 3 fails."""

    at_once = most_at_once = 0

    def setup_data(self):
        return range(getattr(self, "items", 3))

    async def run_item(self, server, item):
        if item == 3:
            raise KeyError("no answer")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        metrics = {"accuracy": float(item % 2 == 0)}
        if item:
            metrics["length"] = item
        return metrics, [{"item": item, "n": 0}, {"item": item, "n": 1}]


SERVERS = SimpleNamespace(servers=[SimpleNamespace(config=SimpleNamespace(model_name="m"))])


async def test_metrics_are_averaged_and_written_in_one_line_per_sample(tmp_path, capsys):
    metrics = await Sums(eval_dir=tmp_path).eval(SERVERS)
    assert metrics == {"accuracy": pytest.approx(2 / 3), "length": 1.5}
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["results"] == {"atropos|Sums@1|0": metrics, "all": metrics}
    general = written["config_general"]
    assert general["model_name"] == "m"
    assert general["generation_parameters"] == {"temperature": 0.0, "n": 1, "top_p": 1.0}
    assert float(general["total_evaluation_time_seconds"]) >= 0
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines][:2] == [
        {"item": 0, "n": 0},
        {"item": 0, "n": 1},
    ]
    assert len(lines) == 6
    assert "|Sums@1|" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("samples", "lines"),
    [({"q": 1}, [{"q": 1}]), (["text", [1]], ["text", [1]]), (None, []), ((), [])],
)
async def test_samples_of_an_item_may_have_any_form(samples, lines, tmp_path):
    class Single(EvalBase):
        def setup_data(self):
            return ["item"]

        async def run_item(self, server_manager, item):
            return {"acc": 1.0}, samples

    await Single(eval_dir=tmp_path, verbose=False).eval(SERVERS)
    written = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == lines


async def test_a_completion_has_the_sampling_parameters_of_the_evaluation():
    harness = ServerHarness()
    asked = [{"role": "user", "content": "2 + 2"}]
    harness.set_desired_response(asked, create_chat_completion("4"))
    evaluation = Sums(temperature=0.6, max_tokens=8)
    completion = await evaluation.chat_completion(harness, asked)
    assert completion.choices[0].message.content == "4"
    (call,) = harness.calls
    assert (call["temperature"], call["max_tokens"], call["n"]) == (0.6, 8, 1)
    assert len(harness.eval_request_timings) == 1


async def test_a_failed_item_is_counted_apart_and_ends_nothing(caplog):
    metrics = await Sums(items=5, verbose=False).eval(SERVERS)
    assert metrics == {"accuracy": 0.75, "length": pytest.approx(7 / 3), "failed_items": 1}
    assert "KeyError: 'no answer', in `raise KeyError(" in caplog.text
    assert "run_item failed on item 3)" in caplog.text
    assert "the results are not written to files" in caplog.text


async def test_an_evaluation_without_results_raises_the_reason():
    class OnlyFailures(Sums):
        def setup_data(self):
            return [3, 3]

    class NoNumber(Sums):
        async def run_item(self, server_manager, item):
            return {"accuracy": float("nan")}, []

    with pytest.raises(AtroposError, match="no answer.*\nall samples of the first 2 items"):
        await OnlyFailures().eval(SERVERS)
    with pytest.raises(AtroposError, match="accuracy is nan, in `async def run_item"):
        await NoNumber().eval(SERVERS)
    with pytest.raises(ConfigError, match="no items"):
        await Sums(items=0).eval(SERVERS)
    with pytest.raises(ConfigError, match="max_concurrency"):
        Sums(max_concurrency=0)


async def test_no_more_items_run_at_once_than_allowed():
    bounded = Sums(items=3, max_concurrency=2, verbose=False)
    await bounded.eval(SERVERS)
    assert bounded.most_at_once == 2


def test_generation_parameters_and_the_task_come_from_the_attributes():
    drawn = Sums(pass_at_n=2, pass_at_n_samples=8, temperature=0.6, top_p=0.9, max_tokens=64)
    assert drawn.get_generation_params() == {
        "temperature": 0.6,
        "n": 8,
        "top_p": 0.9,
        "max_tokens": 64,
    }
    assert drawn.task_name == "Sums@2:8"
    assert Sums(pass_at_n=4).get_generation_params()["n"] == 4
    assert "max_tokens" not in Sums(max_tokens=-1).get_generation_params()


def test_data_may_be_set_by_setup_itself():
    class Itself(Sums):
        def setup_data(self):
            self.data = [1]

    assert Itself().data == [1]
    with pytest.raises(TypeError):
        EvalBase()


def test_results_are_written_whole_whatever_the_metrics_are(tmp_path, capsys):
    evaluate_log({"a": None, "b": float("nan")}, tmp_path, "t", "m", 1.0, 3.5, verbose=True)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["results"]["all"] == {"a": None, "b": None}
    assert written["config_general"]["total_evaluation_time_seconds"] == "2.5"
    assert not (tmp_path / "samples.jsonl").exists()
    assert "2.5 s" in capsys.readouterr().out


class Asked(EvalBase):
    """Asks the server, and is right where it answers what the fake one answers."""

    def setup_data(self):
        return ["a", "b"]

    async def run_item(self, server_manager, item):
        completion = await server_manager.chat_completion(
            messages=[{"role": "user", "content": item}],
            split="eval",
            **self.get_generation_params(),
        )
        texts = [choice.message.content for choice in completion.choices]
        right = sum(text.startswith("answer") for text in texts)
        return {"pass": pass_at_k(len(texts), right, self.pass_at_n)}, [{"texts": texts}]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_command_line_names_the_server_and_the_server_its_model(
    fake, inference_url, tmp_path, suffix
):
    url = inference_url.removesuffix("/v1") + suffix
    asked = Asked(pass_at_n=1, pass_at_n_samples=2, eval_dir=tmp_path)
    assert await eval_runner(asked, ["--server-url", url]) == {"pass": 1.0}
    assert {path for path in fake.paths} == {"/v1/chat/completions"}
    assert {body["model"] for _, body in fake.requests} == {"fake"}
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["config_general"]["model_name"] == "fake"


async def test_a_given_model_name_is_not_requested(fake, inference_url):
    await eval_runner(
        Asked(verbose=False), ["--server-url", inference_url, "--model-name", "mine"]
    )
    assert {body["model"] for _, body in fake.requests} == {"mine"}


@pytest.mark.slow
async def test_an_evaluation_runs_against_the_local_server(tmp_path):
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app
    from atroposlib.testing.tiny import write_tiny_model
    from tests.serving import served

    model = load_model(str(write_tiny_model(tmp_path / "model", hidden_size=32)), name="tiny")
    engine = Engine(model, EngineLimits(), seed=0, num_threads=1)
    engine.start()
    asked = Asked(
        pass_at_n_samples=2, temperature=1.0, max_tokens=4, eval_dir=tmp_path, verbose=False
    )
    with served(create_app(engine)) as url:
        metrics = await eval_runner(asked, ["--server-url", url])
    assert set(metrics) == {"pass"}
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["texts"]) for line in lines] == [2, 2]
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written["config_general"]["model_name"] == "tiny"


# --- words of the author -------------------------------------------------------------------

#: Attributes and methods of an evaluation that the library reads, as EvalBase documents them.
OF_EVALUATIONS = {
    *(
        "pass_at_n pass_at_n_samples temperature top_p max_tokens data setup_data run_item".split()
    ),
    *(
        "get_generation_params eval task_name eval_dir model_name max_concurrency verbose".split()
    ),
}


@pytest.mark.parametrize("put", CLASS_WAYS, ids=lambda way: way.__name__)
async def test_every_other_word_of_an_evaluation_is_the_authors(put, tmp_path):
    class Plain(EvalBase):
        def setup_data(self):
            return [1, 3]

        async def run_item(self, server, data_item):
            return {"value": data_item}, []

    words = [word for word in foreign_words() if word not in OF_EVALUATIONS]
    evaluation = put(Plain, words)(eval_dir=tmp_path, verbose=False)
    assert await evaluation.eval(SimpleNamespace(servers=())) == {"value": 2.0}
