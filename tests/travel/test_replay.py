"""atropos data replay with the real trainer on the tiny model."""

from __future__ import annotations

import json

import msgspec
import pytest

from atroposlib.errors import ConfigError
from atroposlib.processes.children import RunFailed
from atroposlib.travel import replay, rescore
from atroposlib.travel.replay import trainer_command
from tests.travel.recorded import planted_run
from tests.travel.training import (
    GROUPS,
    metrics_of,
    record_training,
    sampled_groups,
    tiny_model,
)

STEPS, BUG_FROM = 5, 3
RIGHT_REWARD = """
def reward(completion):
    return float(completion == "right")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model, and the folder of a run whose reward is inverted from step 3 on."""
    folder = tmp_path_factory.mktemp("trained")
    model = tiny_model(folder / "model")
    groups = sampled_groups(STEPS, BUG_FROM)
    return model, record_training(folder / "run", model, groups, checkpoint_interval=1)


def equal_metrics(ours, theirs):
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs):
        for name in ("loss", "reward_mean", "grad_norm", "entropy", "staleness_mean"):
            assert one[name] == pytest.approx(two[name], abs=1e-6), name


@pytest.mark.slow
def test_five_steps_have_the_recorded_metrics(trained, tmp_path, capsys):
    _, run = trained
    assert replay.main([str(run), "--to", "trainer", "--out", str(tmp_path / "again")]) == 0
    assert "off-policy" in capsys.readouterr().out
    equal_metrics(metrics_of(tmp_path / "again"), metrics_of(run))
    with pytest.raises(ConfigError, match="another --out"):
        replay.main([str(run), "--to", "trainer", "--out", str(tmp_path / "again")])


@pytest.mark.slow
def test_a_planted_bug_is_named_and_replayed_as_a_fresh_run_without_it(
    trained, tmp_path, capsys
):
    _, run = trained
    (tmp_path / "right.py").write_text(RIGHT_REWARD)
    scores, page = tmp_path / "rescored.jsonl", tmp_path / "rescored.html"
    words = ["--reward", str(tmp_path / "right.py"), "--out", str(scores), "--html", str(page)]
    assert rescore.main([str(run), *words]) == 0
    assert f"advantages change sign in steps {BUG_FROM}-{STEPS}\n" in capsys.readouterr().out

    before = run / "checkpoints" / f"step_{BUG_FROM - 1}"
    words = ["--from-step", str(BUG_FROM), "--scores", str(scores)]
    words += ["--out", str(tmp_path / "mended"), "--", f"model_name={before}"]
    assert replay.main([str(run), "--to", "trainer", *words]) == 0

    fresh_groups = []
    for number, group in enumerate(sampled_groups(STEPS)[(BUG_FROM - 1) * GROUPS :]):
        versions = [[v - BUG_FROM + 1 if v >= 0 else v for v in row] for row in group.versions]
        fresh_groups.append(msgspec.structs.replace(group, versions=versions))
    steps = STEPS - BUG_FROM + 1
    fresh = record_training(tmp_path / "fresh", before, fresh_groups, training_steps=steps)
    equal_metrics(metrics_of(tmp_path / "mended"), metrics_of(fresh))
    bad = metrics_of(run)[BUG_FROM - 1 :]
    assert all(one["loss"] != two["loss"] for one, two in zip(bad, metrics_of(fresh)))


@pytest.mark.slow
def test_a_trainer_that_fails_ends_the_replay_with_its_log(trained, tmp_path):
    _, run = trained
    words = ["--out", str(tmp_path / "bad"), "--", "model_name=no/such/model"]
    with pytest.raises(RunFailed, match="trainer ended before the last batch") as failed:
        replay.main([str(run), "--to", "trainer", *words])
    assert "no/such/model" in failed.value.tail


def test_lines_have_the_groups_of_the_batches_in_order(tmp_path, capsys):
    run, out = planted_run(tmp_path / "run"), tmp_path / "batches.jsonl"
    words = [str(run), "--to", "jsonl", "--from-step", "3", "--out", str(out)]
    assert replay.main(words) == 0
    assert capsys.readouterr().out == f"4 groups of 2 batches in {out}\n"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["group_id"] for line in lines] == [f"sum{n}@0" for n in (30, 31, 40, 41)]
    assert [line["metadata"]["step"] for line in lines] == [3, 3, 4, 4]


def test_words_of_a_trainer_need_a_trainer(tmp_path):
    run = planted_run(tmp_path / "run", steps=1)
    with pytest.raises(ConfigError, match="--to trainer"):
        replay.main([str(run), "--to", "jsonl", "--", "lr=1"])


def test_the_recorded_publisher_is_replaced_where_it_needs_servers(tmp_path):
    file = tmp_path / "trainer.yaml"
    for publisher, replaced in (("distributed", True), ("lora", False)):
        file.write_text(json.dumps({"weight_publisher": publisher}))
        words = trainer_command("http://a", tmp_path, [file], 5, ["lr=1"])
        assert ("weight_publisher=disk" in words) == replaced
        assert words[-1] == "lr=1" and "training_steps=5" in words
