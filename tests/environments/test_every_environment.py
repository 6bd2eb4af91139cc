"""Every environment of the folder on a tiny model, and the scores of replies to it.

``process`` and ``evaluate`` run the command line of `atropos env run`, all but two in this process.
A new file is covered as it is; one that needs rows has a case in cases.py.
"""

from __future__ import annotations

import itertools
import json
import math
import sys

import pytest

from atroposlib.envs import sandbox
from atroposlib.envs.function_env import FunctionEnv
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer, write_char_tokenizer
from tests.environments import cases
from tests.environments.cases import (
    ADVERSARIAL,
    CASES,
    ENVIRONMENTS,
    GROUP,
    Case,
    env_cls_of,
    fields,
)

pytestmark = pytest.mark.slow

EVALUATED = 4


@pytest.fixture(params=ENVIRONMENTS)
def name(request):
    if why := cases.missing(request.param):
        pytest.skip(why)
    return request.param


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_process_writes_token_exact_groups(name, command, tiny_server, tmp_path):
    out = tmp_path / "groups.jsonl"
    command(name, "process", *tiny_server, data_path_to_save_groups=out, total_steps=2)
    groups = rows_of(out)
    # More than two: a random role marker in a reply forks a conversation.
    assert len(groups) >= 2
    for group in groups:
        assert group["metadata"]["env"] == env_cls_of(name).name
        sampled = "inference_logprobs" in group
        assert len(group["tokens"]) == len(group["scores"]) == (GROUP if sampled else 1)
        for tokens, mask in zip(group["tokens"], group["masks"]):
            assert len(tokens) == len(mask) <= 4096
            assert any(m != -100 for m in mask)
            assert all(m in (-100, token) for m, token in zip(mask, tokens))
        for mask, logprobs in zip(group["masks"], group.get("inference_logprobs", ())):
            assert all((m == -100) == (logprob == 1.0) for m, logprob in zip(mask, logprobs))
        if "teacher_top_k" in fields(name):
            assert all(len(ids) <= 3 for row in group["distill_token_ids"] for ids in row)
            lengths = [len(row) for row in group["distill_logprobs"]]
            assert lengths == [len(row) for row in group["tokens"]]
    assert out.with_suffix(".html").is_file()


def test_evaluate_writes_metrics_samples_and_settings(name, command, tiny_server, tmp_path):
    out = tmp_path / "evals"
    command(name, "evaluate", *tiny_server, data_dir_to_save_evals=out)
    results = json.loads((out / "metrics.json").read_text())["results"]["all"]
    assert CASES.get(name, Case(metric="reward")).metric in results
    assert results.get("failed", 0) == 0 and all(map(math.isfinite, results.values()))
    written = {path.name for path in out.iterdir()}
    assert {"evaluate_config.yaml", "metrics.json"} <= written
    if name != "sft_loader":  # nothing is sampled
        assert len(rows_of(out / "samples.jsonl")) >= EVALUATED


def has_card(name):
    env_cls = env_cls_of(name)
    return issubclass(env_cls, FunctionEnv) and env_cls.definition.card is not None


WITHOUT_A_CARD = [name for name in ENVIRONMENTS if not has_card(name)]


@pytest.mark.parametrize("name", WITHOUT_A_CARD)
def test_gold_replies_get_the_best_score_and_no_others_do(name, command, tmp_path):
    """Environments with a card: tests/environments/test_library.py."""
    if why := cases.missing(name):
        pytest.skip(why)
    assert name in CASES, f"{name}: state gold replies by a Card, or here in cases.py"
    case = CASES[name]
    if case.gold is None:
        pytest.skip("nothing is sampled")
    others, golds = [*ADVERSARIAL.values(), *case.wrong], set()
    pair = fields(name)["group_size"].default == 2
    gold_first = [[None, reply] for reply in others] if pair else [[None], others]
    order = itertools.chain.from_iterable(itertools.cycle(gold_first))

    def reply(prompt, index):
        later = prompt.count("<|assistant|>") > 1 or "[Answer A]" in prompt
        text = None if later else next(order)
        if text is None and not later:
            golds.add(case.gold(prompt))
        return case.gold(prompt) if text is None else text

    out = tmp_path / "groups.jsonl"
    tokenizer = char_tokenizer(ASCII_ALPHABET)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with FakeInference(reply=reply).running() as url:
        command(
            *(name, "process", url, tmp_path / "tokenizer"),
            reply_tokens=200,
            data_path_to_save_groups=out,
            total_steps=len(others) if pair else 1,
            group_size=2 if pair else 1 + len(others),
            **case.scored,
        )
    scores = {}
    for group in rows_of(out):
        for mask, score in zip(group["masks"], group["scores"]):
            text = tokenizer.decode([m for m in mask if m != -100])
            scores.setdefault(text.partition("<|end|>")[0], []).append(score)
    best = {score for gold in golds for score in scores.pop(gold)}
    assert [*best] == [pytest.approx(case.best)]
    assert len(scores) >= 8
    assert {text: got for text, got in scores.items() if max(got) > case.floor} == {}


RUNS_PROGRAMS = [name for name in ENVIRONMENTS if "sandbox" in fields(name)]


@pytest.mark.parametrize("name", RUNS_PROGRAMS)
def test_without_bubblewrap_an_environment_that_runs_programs_refuses_to_start(
    name, command, tmp_path, monkeypatch, capsys
):
    system, tokenizer = tmp_path / "system", tmp_path / "tokenizer"
    system.mkdir()
    (system / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sandbox, "SYSTEM_PATH", str(system))
    write_char_tokenizer(tokenizer)
    with FakeInference().running() as url, pytest.raises(SystemExit) as ended:
        command(name, "process", url, tokenizer, sandbox="bubblewrap")
    assert ended.value.code == 2
    assert "apt install bubblewrap" in capsys.readouterr().err
